-- queue: take the waiting slot for a run that has just been published.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock, ttl of the slot in ms, 1 if another run that holds the lease is in the way too
-- ARGV[2]  run
-- return   {} or busy

--> read
--> runs

local ttl, running_too = struct.unpack('>dd', ARGV[1], 17)
local run, resumed = ARGV[2], false

local reason, in_the_way, retry_ms
if seen(run) then
  reason, in_the_way, retry_ms = 'finished', run, 0
elseif r_queued > 0 then
  reason, in_the_way, retry_ms = 'queued', r_slot, 0
elseif r_slot ~= run and slot_taken() then
  reason, in_the_way, retry_ms = 'queued', r_slot, r_slot_expires_ms - now
elseif running_too == 1 and live and r_run ~= run then
  reason, in_the_way, retry_ms = 'running', r_run, r_expires_ms - now
else
  fill_slot(run, now + ttl, PASSED)
  --> write
  return {}
end
--> busy
return refusal
