-- queue: take the waiting slot for a run that has just been published.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock, ttl of the slot in ms, 1 if another run that holds the lease is in the way too
-- ARGV[2]  run
-- return   {} or busy()

local ttl, running_too = struct.unpack('>dd', ARGV[1], 17)
local run = ARGV[2]

if seen(run) then return busy('finished', run, 0) end
if r.slot ~= run and slot_taken() then return busy('queued', r.slot, r.slot_expires_ms - now) end
if running_too == 1 and live and r.run ~= run then return busy('running', r.run, r.expires_ms - now) end
fill_slot(run, now + ttl, 0)
save()
return {}
