-- queue: take the waiting slot for a run that has just been published.
--
-- KEYS[1]  the lease's key
-- ARGV[3]  run         ARGV[4]  ttl of the slot, ms
-- ARGV[5]  1 if another run that holds the lease is in the way too
-- return   {1} or busy()

local run = ARGV[3]

if seen(run) then return busy('finished', run, 0) end
if r.slot ~= run and slot_taken() then return busy('queued', r.slot, r.slot_expires_ms - now) end
if ARGV[5] == '1' and live and r.run ~= run then return busy('running', r.run, r.expires_ms - now) end
fill_slot(run, now + tonumber(ARGV[4]), 0)
save()
return {1}
