-- claim: grant the lease, or say who is in the way.
--
-- KEYS[1]  the lease's key
-- ARGV[3]  run            ARGV[4]  attempt      ARGV[5]  token
-- ARGV[6]  ttl, ms        ARGV[7]  window, ms   ARGV[8]  holder
-- ARGV[9]  '', or '=' and the run to go on from
-- ARGV[10] wait, ms: 0 wants no slot            ARGV[11] 1 if that slot is a reservation
-- ARGV[12] 1 if the claimant listens
-- return   {1, fence, took over, started ms, opens ms} or busy()

local run, attempt, token = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local ttl, window, after, wait, first = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])
local listens = ARGV[12] == '1'
if listens then first = 2 end

if live and r.token == token then
  save()
  return {1, tonumber(r.fence), 0, r.started_ms, r.opens_ms}
end

local before = seen(run)
local done = before and (before[2] > attempt or (before[2] == attempt and before[3] == 1))
local resumed = not done and (attempt > 0 or before ~= nil)
local opens = r.opens_ms
if window > 0 and r.started_ms > 0 then opens = math.max(opens, r.started_ms + window) end

local reason, retry_ms = nil, 0
if done then
  reason = 'finished'
elseif live then
  reason, retry_ms = r.run == run and 'same_run' or 'running', r.expires_ms - now
elseif not resumed and opens > 0 and now <= opens then
  reason, retry_ms = 'window', opens - now + 1
elseif not resumed and r.first > 0 and r.slot ~= run and slot_taken() then
  reason, retry_ms = 'reserved', r.slot_expires_ms - now
elseif after ~= '' and r.run ~= '' and r.run ~= run and '=' .. r.run ~= after then
  reason = 'superseded'
end

if reason then
  if r.slot == run then
    if reason ~= 'same_run' then
      if wait > 0 then fill_slot(run, now + wait, first) else fill_slot('', 0, 0) end
    end
  elseif wait > 0 and (reason == 'running' or reason == 'window') and not slot_taken() then
    fill_slot(run, now + wait, first)
  end
  if wait == 0 and not resumed and (reason == 'running' or reason == 'window' or reason == 'reserved') then
    r.refused, r.refused_ms, r.refused_reason = r.refused + 1, now, reason
  end
  save()
  if listens and r.slot ~= run then stand_in_line(run) end
  return busy(reason, r.run, retry_ms, resumed)
end

local took_over = r.held == 1 and r.token ~= token
if not resumed or r.started_ms == 0 then
  r.started_ms = now
  if window > 0 then r.opens_ms = math.max(r.opens_ms, now + window) end
end
r.token, r.run, r.outcome, r.holder = token, run, '', ARGV[8]
local fence = math.max(r.fence + 1, tick)
r.fence, r.held, r.expires_ms, r.ttl_ms = whole(fence), 1, now + ttl, ttl
mark(run, attempt, 0)
if r.slot == run then fill_slot('', 0, 0) end
if not listens then
  save(true)
else
  local following = first_in_line(wait)
  if following == run then
    leave_line(run)
    fill_slot('', 0, 0)
    following = first_in_line(wait)
  end
  save(true)
  leave_line(run)
  if following then leave_line(following) end
end
return {1, fence, took_over and 1 or 0, r.started_ms, r.opens_ms}
