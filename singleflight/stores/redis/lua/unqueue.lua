-- unqueue: clear the waiting slot if it is this run's; it waits no longer.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock
-- ARGV[2]  run
-- return   1 if it was, else 0

--> read
--> beside
--> line
--> tell

leave_line(ARGV[2])
if r_slot == '' or r_slot ~= ARGV[2] then return 0 end
clear_slot()
local following = first_in_line(TOLD)
--> write
if following then
  leave_line(following)
  if not live then tell() end
end
return 1
