-- due: which keys must be looked at for a home.
--
-- KEYS[1]  the home: a sorted set of keys by their moment, and of '!' by the latest time that this was asked
-- ARGV[1]  remember, clock
-- ARGV[2]  how many at most
-- return   ms until the next one after these (-1: none), then the keys

local remember, tick = struct.unpack('>dd', ARGV[1])
if tick == 0 then
  local time = redis.call('TIME')
  tick = time[1] * 1000000 + time[2]
end
local now = math.floor(tick / 1000)
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2] + 1)
local looked = tonumber(redis.call('ZSCORE', KEYS[1], '!') or now)
if looked > now then
  -- The clock was set back: every moment lies in what was the future.
  redis.call('ZUNIONSTORE', KEYS[1], 1, KEYS[1], 'WEIGHTS', 0)
  found = redis.call('ZRANGE', KEYS[1], 0, ARGV[2])
end
local keys = {-1}
for _, key in ipairs(found) do
  if key ~= '!' and #keys <= tonumber(ARGV[2]) then keys[#keys + 1] = key end
end
local later = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if later[2] then keys[1] = later[2] - now end
if #keys > 1 or later[2] then redis.call('ZADD', KEYS[1], now, '!') end
return keys
