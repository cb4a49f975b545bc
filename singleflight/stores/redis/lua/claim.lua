-- claim: grant the lease, or say who is in the way.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock, ttl in ms, window in ms, wait in ms (0 wants no slot), how the claimant
--          waits (see read.lua), the number of the call that it comes by, the order that it carries
-- ARGV[2]  attempt        ARGV[3]  run          ARGV[4]  token        ARGV[5]  holder
-- ARGV[6]  '', or '=' and the run to go on from
-- ARGV[7]  the homes that can be published for, one in a row
-- ARGV[8]  if it is to wait in line: how; and then ARGV[9] its home, ARGV[10] its message, ARGV[11] its life in ms
-- return   of a grant, packed: 1 if it took over, fence, started in ms, opens in ms; else busy. Where there is a
--          line: {1, one of these, the run's order, and what was called as in look.lua}

--> read
--> runs
--> beside
--> line

local GRANT = '>Bddd'
local ttl, window, wait, waits, call_no, order = struct.unpack('>dddddd', ARGV[1], 17)
local attempt, run, token, after = tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[6]
local listens, homes, kind = waits == LISTENING, ARGV[7], ARGV[8]

if live and r_token == token then
  --> write
  return struct.pack(GRANT, 0, r_fence, r_started_ms, r_opens_ms)
end

-- A message may say anything; nobody came first in the future.
if order > now + 60000 then order = 0 end
local L, entry = nil, nil
if r_waiting > 0 or kind then
  L = {}
  --> entries
  --> call
  entry = L.find(run)
  if entry then order = entry.order end
end

local before, ended = seen(run)
local done = before and (before > attempt or (before == attempt and ended == '1'))
local resumed = not done and (attempt > 0 or before ~= nil)
local opens = r_opens_ms
if window > 0 and r_started_ms > 0 then opens = math.max(opens, r_started_ms + window) end

local ahead = L and not live and L.ahead(run, order > 0 and order or math.huge, resumed)
local reason, in_the_way, retry_ms = nil, r_run, 0
if done then
  reason = 'finished'
elseif live and r_run == run then
  reason, retry_ms = 'same_run', r_expires_ms - now
elseif entry and entry.ending then
  reason = 'ending'
elseif live then
  reason, retry_ms = 'running', r_expires_ms - now
elseif not resumed and opens > 0 and now <= opens then
  reason, retry_ms = 'window', opens - now + 1
elseif ahead then
  reason, retry_ms = 'reserved', ahead
elseif not resumed and r_waits > PASSED and not (waits == FIRST and r_waits == FIRST) and r_slot ~= run and slot_taken() then
  -- Who listens comes at once, and keeps its turn. Those who poll are seconds away, and may pass each other.
  reason, retry_ms = 'reserved', r_slot_expires_ms - now
elseif after ~= '' and r_run ~= '' and r_run ~= run and '=' .. r_run ~= after then
  reason = 'superseded'
end

local took_over, following = r_held > 0 and r_token ~= token, nil
granted = not reason
if granted then
  if not resumed or r_started_ms == 0 then
    r_started_ms = now
    if window > 0 then r_opens_ms = math.max(r_opens_ms, now + window) end
  end
  r_token, r_run, r_outcome, r_holder = token, run, '', ARGV[5]
  r_fence, r_held, r_expires_ms, r_ttl_ms = math.max(r_fence + 1, tick), resumed and 1 or 2, now + ttl, ttl
  mark(run, ARGV[2], '0')
  if r_slot == run then clear_slot() end
  if listens then
    following = first_in_line(wait)
    if following == run then
      leave_line(run)
      clear_slot()
      following = first_in_line(wait)
    end
  end
else
  if r_slot == run then
    -- A copy, of the run that works or of an attempt before its retry, has no place of its own.
    if reason ~= 'same_run' and reason ~= 'finished' then
      -- Its publisher may have asked for longer: a message can stay long in a broker's queue.
      local expires = waits > PASSED and now + wait or math.max(r_slot_expires_ms, now + wait)
      if wait > 0 then fill_slot(run, expires, waits) else clear_slot() end
    end
  elseif wait > 0 and (reason == 'running' or reason == 'window') and not slot_taken() then
    fill_slot(run, now + wait, waits)
  end
  if wait == 0 and not kind and not resumed and (reason == 'running' or reason == 'window' or reason == 'reserved') then
    r_refused, r_refused_ms, r_refused_reason = r_refused + 1, now, reason
  end
end

local lined
if L then
  --> park
  L.finish(false)
  lined = {1, '', order, unpack(L.called)}
end

--> write

if granted then
  if listens then leave_line(run) end
  if following then leave_line(following) end
  local grant = struct.pack(GRANT, took_over and 1 or 0, r_fence, r_started_ms, r_opens_ms)
  if not lined then return grant end
  lined[2] = grant
  return lined
end
if listens and r_slot ~= run then
  redis.call('ZADD', beside('line'), 'NX', tick, run)
  redis.call('PEXPIRE', beside('line'), LINE)
end
--> busy
if not lined then return refusal end
lined[2] = refusal
return lined
