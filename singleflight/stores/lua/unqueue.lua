-- unqueue: clear the waiting slot if it is this run's.
--
-- KEYS[1]  the lease's key
-- ARGV[3]  run
-- return   1 if it was, else 0

if r.slot == '' or r.slot ~= ARGV[3] then return 0 end
fill_slot('', 0, 0)
save()
return 1
