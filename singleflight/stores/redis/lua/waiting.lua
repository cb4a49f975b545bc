-- waiting: who stands in the line, without changing anything.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock
-- ARGV[2]  how many to show
-- return   how many wait, the store's clock in ms, and of each: the fields that operators see

--> read
--> beside
local ENTRIES = beside('waiting')
local shown = {}
for _, packed in ipairs(redis.call('HVALS', ENTRIES)) do
  local v = cmsgpack.unpack(packed)
  if v[19] == 0 or v[19] > now then shown[#shown + 1] = v end
end
table.sort(shown, function(a, b) return a[3] < b[3] end)
local reply = {redis.call('HLEN', ENTRIES), now}
for at = 1, math.min(#shown, tonumber(ARGV[2])) do
  local v = shown[at]
  reply[#reply + 1] = {v[1], v[2], v[3], v[4], v[22], v[7] and 1 or 0, v[21] and 1 or 0, v[5], v[9], v[14]}
end
return reply
