-- claim: grant the lease, or say who is in the way.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock, ttl in ms, window in ms, wait in ms (0 wants no slot), 1 if that slot is a
--          reservation, 1 if the claimant listens
-- ARGV[2]  attempt        ARGV[3]  run          ARGV[4]  token        ARGV[5]  holder
-- ARGV[6]  '', or '=' and the run to go on from
-- return   of a grant, packed: 1 if it took over, fence, started in ms, opens in ms; else busy()

local ttl, window, wait, first, listens = struct.unpack('>ddddd', ARGV[1], 17)
local attempt, run, token, after = tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[6]
local GRANT = '>Bddd'
listens = listens == 1
if listens then first = 2 end

if live and r.token == token then
  save()
  return struct.pack(GRANT, 0, r.fence, r.started_ms, r.opens_ms)
end

local before, ended = seen(run)
local done = before and (before > attempt or (before == attempt and ended == '1'))
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
  if listens and r.slot ~= run then
    redis.call('ZADD', beside('line'), 'NX', tick, run)
    redis.call('PEXPIRE', beside('line'), LINE)
  end
  return busy(reason, r.run, retry_ms, resumed)
end

local took_over = r.held == 1 and r.token ~= token
if not resumed or r.started_ms == 0 then
  r.started_ms = now
  if window > 0 then r.opens_ms = math.max(r.opens_ms, now + window) end
end
r.token, r.run, r.outcome, r.holder = token, run, '', ARGV[5]
r.fence, r.held, r.expires_ms, r.ttl_ms = math.max(r.fence + 1, tick), 1, now + ttl, ttl
mark(run, ARGV[2], '0')
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
return struct.pack(GRANT, took_over and 1 or 0, r.fence, r.started_ms, r.opens_ms)
