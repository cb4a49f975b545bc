-- Put before every operation: reads the record of KEYS[1], puts its times right, can save it.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember: milliseconds for which the record outlives its last use
-- ARGV[2]  '' in production; tests put the time here, in microseconds of a clock of their own
--
-- The record is one JSON object: to a server that is one value to read and one to write, where a hash is a
-- dozen. A field that is empty or zero is not stored.
--   v                version of the record
--   token, run       the delivery and the run that were granted last
--   fence            number of that grant, at least the clock's microseconds; text, for it has 16 digits
--   held             1 until released or evicted
--   expires_ms       end of the lease        ttl_ms   its length
--   started_ms       start of the run        opens_ms end of its window
--   outcome, holder  how it ended, who it was
--   runs             oldest first: [[run, attempt, 1 if that has ended], ...]
--   slot             the run that waits      slot_expires_ms  until when
--   first            1 if the slot is a reservation, 2 if it is one of somebody who listens
--   refused          how many claims that did not wait met another run
--   refused_ms       when the last one did    refused_reason  why

local VERSION, RUNS_KEPT, INFINITE = 1, 64, 1073741824
local NOTHING = {
  token = '', run = '', fence = '0', held = 0, expires_ms = 0, ttl_ms = 0, started_ms = 0, opens_ms = 0,
  outcome = '', holder = '', slot = '', slot_expires_ms = 0, first = 0,
  refused = 0, refused_ms = 0, refused_reason = ''
}

local tick = tonumber(ARGV[2])
if not tick then
  local time = redis.call('TIME')
  tick = time[1] * 1000000 + time[2]
end
local now = math.floor(tick / 1000)

local stored = redis.call('GET', KEYS[1])
local missing = not stored
local r = {runs = {}}
if stored then
  local readable
  readable, r = pcall(cjson.decode, stored)
  if not readable or type(r) ~= 'table' or not r.v then return redis.error_reply('WRONGTYPE not a record') end
  if r.v ~= VERSION then return redis.error_reply('RECORDVERSION ' .. r.v) end
  r.runs = r.runs or {}
end
setmetatable(r, {__index = NOTHING})

-- Clocks step back: no time may be further ahead than it can be.
if r.expires_ms > now + r.ttl_ms then r.expires_ms = now + r.ttl_ms end
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

local function seen(run)
  for place = #r.runs, 1, -1 do
    if r.runs[place][1] == run then return r.runs[place], place end
  end
end

-- Remember the run at the end of the list; attempt and end only ever rise.
local function mark(run, attempt, ended)
  local runs, before, place = r.runs, seen(run)
  if before then
    if before[2] > attempt or (before[2] == attempt and before[3] >= ended) then return end
    table.remove(runs, place)
  end
  runs[#runs + 1] = {run, attempt, ended}
  if #runs > RUNS_KEPT then
    -- An ended run that is forgotten may start again; an open one would be taken for a duplicate. Half of
    -- the room is for each, because some open ones never come back.
    local ends = 0
    for _, one in ipairs(runs) do ends = ends + one[3] end
    local surplus = ends > RUNS_KEPT / 2 and 1 or 0
    for i, one in ipairs(runs) do
      if one[3] == surplus then table.remove(runs, i); break end
    end
  end
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

-- Whoever listens stands in line, a sorted set beside the record, and blocks on a list of its own: the first
-- in line gets the slot when that is free, and is told when the lease is. The braces keep all on one server.
local TOLD, LINE = 1000, 5000
local function beside(name)
  return (string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}') .. ':' .. name
end

local function stand_in_line(run)
  redis.call('ZADD', beside('line'), 'NX', whole(tick), run)
  redis.call('PEXPIRE', beside('line'), LINE)
end

local function leave_line(run)
  redis.call('ZREM', beside('line'), run)
end

local function first_in_line(life)
  local run = not slot_taken() and redis.call('ZRANGE', beside('line'), 0, 0)[1]
  if run then fill_slot(run, now + life, 2) end
  return run
end

local function tell()
  if r.first ~= 2 or not slot_taken() then return end
  redis.call('RPUSH', beside(r.slot), '1')
  redis.call('PEXPIRE', beside(r.slot), TOLD)
end

-- A full server (maxmemory, noeviction) refuses a script whose first write may grow the data set. PEXPIRE
-- may not, so renewals and releases start with it; a new grant (`refusable`) starts with SET.
local function save(refusable)
  local life = whole(math.max(now, r.expires_ms, r.opens_ms, r.slot_expires_ms) - now + tonumber(ARGV[1]))
  if not refusable then redis.call('PEXPIRE', KEYS[1], life) end
  r.v = VERSION
  for name, value in pairs(r) do
    if value == NOTHING[name] then r[name] = nil end
  end
  local runs = r.runs
  if #runs == 0 then r.runs = nil end
  redis.call('SET', KEYS[1], cjson.encode(r), 'PX', life)
  r.runs = runs
end
