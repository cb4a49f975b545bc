-- call: the rules that every operation ends with; `entries` comes before.
local BY_ITSELF = {listening = true, ['counting down'] = true}
local MAX_CALLED, MAX_BYTES = 16, 1048576
local called, bytes, hails, can = {}, 0, {}, {}
for home in string.gmatch(homes, '[^\n]+') do can[home] = true end
L.by_itself, L.called = BY_ITSELF, called

local function is_live() return r_held > 0 and r_expires_ms > now end
local function full() return #called >= 5 * MAX_CALLED or bytes >= MAX_BYTES end
local function room() return 1 - (is_live() and 1 or 0) - redis.call('ZCARD', SETS.called) end

local function opens_at(window)
  if window > 0 and r_started_ms > 0 then return math.max(r_opens_ms, r_started_ms + window) end
  return r_opens_ms
end

local function fits(entry) return entry.begun or now > opens_at(entry.window) end

-- For how long somebody ahead is in the way who is called or ready; nil if nobody is.
function L.ahead(run, order, resumed)
  for _, entry in ipairs(in_set('called', -1)) do
    if entry.run ~= run and entry.order < order then return entry.till - now end
  end
  for _, set in ipairs({'begun', 'fresh'}) do
    local entry = first(set)
    if entry and entry.run ~= run and entry.order < order and (not resumed or fits(entry)) then return HAIL end
  end
end

-- Give its message to whoever asks, or hail its home, or tell who listens.
local function hand(entry)
  if BY_ITSELF[entry.kind] then
    entry.calls = entry.calls + 1
    entry.till = now + doubled(CALL, entry.calls)
    if entry.kind == 'counting down' then
      entry.till = math.max(entry.ends, now + 1)
    else
      redis.call('RPUSH', beside(entry.run), '1')
      redis.call('PEXPIRE', beside(entry.run), TOLD)
    end
  elseif can[entry.home] then
    local message = redis.call('HGET', MESSAGES, entry.run)
    r_call_no = math.max(r_call_no + 1, r_fence + 1, tick)
    entry.calls, entry.no, entry.till, entry.hand, entry.hailed = entry.calls + 1, r_call_no, now + HAND, true, false
    entry.due = math.min(entry.due, now)
    for _, value in ipairs({entry.run, entry.no, entry.order, entry.home, message}) do called[#called + 1] = value end
    bytes = bytes + #message
  else
    hails[entry.home] = true
    entry.till, entry.hailed = now + HAIL, true
  end
  L.place(entry)
  L.put(entry)
end

-- Publish one who joins and is to look, or one who is ending.
local function publish_outside(entry)
  if is_live() and r_run == entry.run then
    entry.standing, entry.moment = 'outside', r_expires_ms
    L.put(entry)
  elseif not can[entry.home] then
    entry.standing, entry.moment = 'hailed', entry.ends
    L.put(entry)
    hails[entry.home] = true
  elseif not full() then
    hand(entry)
  end
end

local function call()
  for _, entry in ipairs(in_set('hailed', AT_ONCE)) do
    if can[entry.home] then publish_outside(entry) end
  end
  for _, entry in ipairs(due()) do
    if entry.size > 0 and entry.standing == 'outside' then publish_outside(entry) end
  end
  for _, entry in ipairs(in_set('called', -1)) do
    if entry.hailed and can[entry.home] then hand(entry) end
  end
  while not full() and room() > 0 do
    local begun, fresh = first('begun'), first('fresh')
    if fresh and not fits(fresh) then fresh = nil end
    if not begun and not fresh then return end
    hand(not fresh and begun or not begun and fresh or begun.order < fresh.order and begun or fresh)
  end
end

local function next_moment()
  local earliest = redis.call('ZRANGE', MOMENTS, 0, 0, 'WITHSCORES')[2]
  local moment = earliest and math.max(tonumber(earliest), 1) or math.huge
  if is_live() then
    moment = math.min(moment, r_expires_ms)
  elseif room() > 0 then
    local fresh = first('fresh')
    if first('begun') then moment = math.min(moment, now) end
    if fresh then moment = math.min(moment, math.max(opens_at(fresh.window) + 1, now)) end
  end
  return moment < math.huge and moment or 0
end

-- Note when the line must be looked at next, for every home that waits in it.
local function touch(exact)
  if r_waiting == 0 then
    for home in string.gmatch(r_homes == '' and homes or r_homes, '[^\n]+') do redis.call('ZREM', home, KEYS[1]) end
    r_homes, r_moment_ms = '', 0
    return
  end
  local moment = next_moment()
  local earlier = moment > 0 and (r_moment_ms == 0 or moment < r_moment_ms)
  for home in string.gmatch(r_homes, '[^\n]+') do
    if hails[home] then
      redis.call('ZADD', home, 'LT', 1, KEYS[1])
    elseif exact and can[home] then
      if moment > 0 then redis.call('ZADD', home, moment, KEYS[1]) else redis.call('ZREM', home, KEYS[1]) end
    elseif earlier then
      redis.call('ZADD', home, 'LT', moment, KEYS[1])
    end
  end
  r_moment_ms, r_line_ms = moment, now
end

function L.finish(exact)
  call()
  touch(exact)
  if r_waiting > 0 and (r_parked == 0 or parked_before == 0) then
    -- While messages wait, nothing here is forgotten.
    local life = math.max(now, r_expires_ms, r_opens_ms, r_moment_ms) - now + remember
    for _, name in ipairs({ENTRIES, MESSAGES, MOMENTS, SETS.called, SETS.outside, SETS.hailed, SETS.fresh, SETS.begun}) do
      if r_parked > 0 then redis.call('PERSIST', name) else redis.call('PEXPIRE', name, life) end
    end
  end
end
