-- entries: who stands in the line, in a block that only runs where somebody does. Keys beside the record:
--   waiting   hash: run -> entry, packed          messages  hash: run -> message
--   moments   when an entry must be looked at     called, outside, hailed, fresh, begun: by order, those who
--             stand so; fresh and begun are those who are ready
-- The rules are those of stores/line.py and stores/line_rules.py, by the same names.
local HAND, HAIL, CALL, LONGEST, PASS, STEP, AT_ONCE = 5000, 2000, 2000, 60000, 1000, 1000, 64
local FIELDS = {
  'run', 'attempt', 'order', 'kind', 'home', 'window', 'begun', 'size', 'since', 'due', 'look', 'till', 'no', 'calls',
  'hand', 'hailed', 'passed', 'away', 'ends', 'life', 'ending', 'standing', 'moment'
}
local ENTRIES, MESSAGES, MOMENTS = beside('waiting'), beside('messages'), beside('moments')
local SETS = {
  called = beside('called'), outside = beside('outside'), hailed = beside('hailed'), fresh = beside('fresh'),
  begun = beside('begun')
}

local function set_of(entry)
  if entry.standing == 'ready' then return SETS[entry.begun and 'begun' or 'fresh'] end
  return SETS[entry.standing]
end

local function counted(entry, by)
  r_waiting = r_waiting + by
  if entry.size > 0 then r_parked = r_parked + by end
  local standing = entry.standing
  if not entry.begun and (standing == 'ready' or standing == 'called' or standing == 'resting') then
    r_queued = r_queued + by
  end
end

local function loaded(packed)
  local entry, values = {}, cmsgpack.unpack(packed)
  for at, name in ipairs(FIELDS) do entry[name] = values[at] end
  entry.before = {set = set_of(entry), moment = entry.moment, size = entry.size, standing = entry.standing, begun = entry.begun}
  return entry
end

local function all_of(runs)
  local found = {}
  if #runs > 0 then
    for _, packed in ipairs(redis.call('HMGET', ENTRIES, unpack(runs))) do
      if packed then found[#found + 1] = loaded(packed) end
    end
  end
  return found
end

local function first(set) return all_of(redis.call('ZRANGE', SETS[set], 0, 0))[1] end
local function in_set(set, most) return all_of(redis.call('ZRANGE', SETS[set], 0, most)) end
local function due() return all_of(redis.call('ZRANGEBYSCORE', MOMENTS, '-inf', now, 'LIMIT', 0, AT_ONCE)) end

function L.find(run)
  local packed = redis.call('HGET', ENTRIES, run)
  return packed and loaded(packed) or nil
end

function L.put(entry, message)
  local before, set, values = entry.before, set_of(entry), {}
  if before then counted(before, -1) end
  counted(entry, 1)
  for at, name in ipairs(FIELDS) do values[at] = entry[name] end
  redis.call('HSET', ENTRIES, entry.run, cmsgpack.pack(values))
  if before and before.set and before.set ~= set then redis.call('ZREM', before.set, entry.run) end
  if set and not (before and before.set == set) then redis.call('ZADD', set, entry.order, entry.run) end
  if entry.moment > 0 then
    redis.call('ZADD', MOMENTS, entry.moment, entry.run)
  else
    redis.call('ZREM', MOMENTS, entry.run)
  end
  if message then
    redis.call('HSET', MESSAGES, entry.run, message)
  elseif entry.size == 0 and before and before.size > 0 then
    redis.call('HDEL', MESSAGES, entry.run)
  end
  entry.before = {set = set, moment = entry.moment, size = entry.size, standing = entry.standing, begun = entry.begun}
end

function L.remove(entry)
  counted(entry.before, -1)
  redis.call('HDEL', ENTRIES, entry.run)
  redis.call('HDEL', MESSAGES, entry.run)
  redis.call('ZREM', MOMENTS, entry.run)
  if entry.before.set then redis.call('ZREM', entry.before.set, entry.run) end
end

local function doubled(least, times) return math.min(least * 2 ^ math.min(times, 10), LONGEST) end

-- Give an entry the standing that its times say, and its next moment.
function L.place(entry)
  local called, standing, moment = entry.till > now, 'ready', 0
  if entry.ending or entry.kind == 'joining' then
    standing = 'outside'
    if entry.size > 0 then
      moment = called and entry.till or math.max(entry.ending and 1 or entry.due, entry.away, 1)
    end
  elseif called then
    standing, moment = 'called', entry.till
  elseif entry.size == 0 and entry.kind == 'parked' then
    standing = 'away'
  elseif entry.away > now then
    standing, moment = 'resting', entry.away
  end
  if entry.ends > 0 and (moment == 0 or moment > entry.ends) then moment = entry.ends end
  entry.standing, entry.moment = standing, moment
end

-- See an entry as it is now; false if its life is over.
local function settle(entry)
  local longest = math.max(HAND, entry.kind == 'counting down' and entry.life or doubled(CALL, entry.calls))
  entry.till = math.min(entry.till, now + longest)
  entry.away = math.min(entry.away, now + LONGEST)
  entry.due = math.min(entry.due, now + entry.look)
  entry.ends = math.min(entry.ends, now + entry.life)
  if entry.ends > 0 and entry.ends <= now then return false end
  if entry.till > 0 and entry.till <= now then
    if entry.hand or entry.hailed then
      entry.away, entry.passed = entry.till + doubled(PASS, entry.passed), entry.passed + 1
    end
    entry.till, entry.hand, entry.hailed = 0, false, false
  end
  local was = entry.moment
  L.place(entry)
  -- Who was woken before its look keeps the moment that it was given.
  if entry.standing == 'outside' and entry.till <= now then entry.moment = math.min(entry.moment, math.max(was, 1), now) end
  return true
end

local function rewind()
  for _, run in ipairs(redis.call('HKEYS', ENTRIES)) do redis.call('ZADD', MOMENTS, 1, run) end
end

function L.wake()
  redis.call('ZUNIONSTORE', MOMENTS, 2, MOMENTS, SETS.outside, 'WEIGHTS', 1, 0, 'AGGREGATE', 'MIN')
end

function L.recount()
  for _, run in ipairs(redis.call('HKEYS', ENTRIES)) do
    local entry, found = L.find(run), false
    counted(entry, 1)
    r_order = math.max(r_order, entry.order)
    for home in string.gmatch(r_homes, '[^\n]+') do found = found or home == entry.home end
    if not found and entry.home ~= '' then r_homes = r_homes .. (r_homes == '' and '' or '\n') .. entry.home end
  end
end

local parked_before = r_parked
-- A record that was lost, or whose life was over before a dead listener's entry was seen again.
if r_waiting == 0 then L.recount() end
if r_waiting > 0 then
  if now < r_line_ms - STEP then rewind() end
  for _, entry in ipairs(due()) do
    if settle(entry) then L.put(entry) else L.remove(entry) end
  end
end
