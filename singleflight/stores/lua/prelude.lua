-- Put before every operation: reads the record of KEYS[1], puts its times right, can save it.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember: milliseconds for which the record outlives its last use
-- ARGV[2]  '' in production; tests put the time here, in microseconds of a clock of their own
--
-- The record is one hash. A field that is empty or zero is not stored.
--   v                version of the record
--   token, run       the delivery and the run that were granted last
--   fence            number of that grant, at least the clock's microseconds
--   held             1 until released or evicted
--   expires_ms       end of the lease        ttl_ms   its length
--   started_ms       start of the run        opens_ms end of its window
--   outcome, holder  how it ended, who it was
--   runs             JSON, oldest first: [[run, attempt, 1 if that has ended], ...]
--   slot             the run that waits      slot_expires_ms  until when
--   first            1 if the slot is a reservation
--   refused          how many claims that did not wait met another run
--   refused_ms       when the last one did    refused_reason  why

local VERSION, RUNS_KEPT, INFINITE = '1', 64, 1073741824
local TEXTS = {'token', 'run', 'outcome', 'holder', 'slot', 'runs', 'refused_reason'}
local NUMBERS = {
  'fence', 'held', 'expires_ms', 'ttl_ms', 'started_ms', 'opens_ms', 'slot_expires_ms', 'first', 'refused', 'refused_ms'
}

local tick = tonumber(ARGV[2])
if not tick then
  local time = redis.call('TIME')
  tick = time[1] * 1000000 + time[2]
end
local now = math.floor(tick / 1000)

local stored, r = {}, {}
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do stored[flat[i]] = flat[i + 1] end
local missing = #flat == 0
if not missing and stored.v ~= VERSION then
  return redis.error_reply('RECORDVERSION ' .. tostring(stored.v))
end
for _, name in ipairs(TEXTS) do r[name] = stored[name] or '' end
for _, name in ipairs(NUMBERS) do r[name] = tonumber(stored[name] or 0) end

-- Clocks step back: no time may be further ahead than it can be.
r.expires_ms = math.min(r.expires_ms, now + r.ttl_ms)
if r.started_ms > now then
  r.opens_ms = math.max(0, r.opens_ms - (r.started_ms - now))
  r.started_ms = now
end

local live = r.held == 1 and r.expires_ms > now

local function slot_taken()
  return r.slot ~= '' and r.slot_expires_ms > now
end

local function fill_slot(run, expires_ms, first)
  r.slot, r.slot_expires_ms, r.first = run, expires_ms, first
end

-- Decoded on demand, because a renewal needs none of it.
local decoded
local function runs()
  decoded = decoded or (r.runs == '' and {} or cjson.decode(r.runs))
  return decoded
end

local function seen(run)
  for place, one in ipairs(runs()) do
    if one[1] == run then return one, place end
  end
end

-- Remember the run at the end of the list; attempt and end only ever rise.
local function mark(run, attempt, ended)
  local before, place = seen(run)
  if before then
    if before[2] > attempt or (before[2] == attempt and before[3] >= ended) then return end
    table.remove(runs(), place)
  end
  table.insert(runs(), {run, attempt, ended})
  if #runs() > RUNS_KEPT then
    -- An ended run that is forgotten may start again; an open one would be taken for a duplicate.
    local oldest = 1
    for i, one in ipairs(runs()) do
      if one[3] == 1 then oldest = i; break end
    end
    table.remove(runs(), oldest)
  end
  r.runs = cjson.encode(runs())
end

-- A refusal: {0, reason, run in the way, ms until it lapses, its holder, its start, claimant resumed, slot, ended}
local function busy(reason, run, retry_ms, resumed)
  local last = seen(r.run)
  local ended = last and last[2] >= INFINITE and last[3] == 1
  return {
    0, reason, run, retry_ms, r.holder, r.started_ms, resumed and 1 or 0, slot_taken() and r.slot or '', ended and 1 or 0
  }
end

local function whole(number)
  return string.format('%.0f', number)
end

-- A full server (maxmemory, noeviction) refuses a script whose first write may grow the data set. PEXPIRE
-- may not, so renewals and releases start with it; a new grant (`refusable`) starts with HSET.
local function save(refusable)
  local life = whole(math.max(now, r.expires_ms, r.opens_ms, r.slot_expires_ms) - now + tonumber(ARGV[1]))
  if not refusable then redis.call('PEXPIRE', KEYS[1], life) end
  local set, unset = {'v', VERSION}, {}
  local function keep(name, text)
    if text ~= stored[name] and text ~= '' then
      set[#set + 1], set[#set + 2] = name, text
    elseif text == '' and stored[name] then
      unset[#unset + 1] = name
    end
  end
  for _, name in ipairs(TEXTS) do keep(name, r[name]) end
  for _, name in ipairs(NUMBERS) do keep(name, r[name] == 0 and '' or whole(r[name])) end
  redis.call('HSET', KEYS[1], unpack(set))
  if #unset > 0 then redis.call('HDEL', KEYS[1], unpack(unset)) end
  if refusable or missing then redis.call('PEXPIRE', KEYS[1], life) end
end
