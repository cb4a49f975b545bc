-- evict: free the key by force, lease, window and waiting slot, and leave a tombstone, so that a holder learns
-- that it lost its lease.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock
-- return   1 if there was a record, else 0

--> read
--> beside
--> line
--> tell

if missing then return 0 end
r_held, r_token, r_outcome, r_started_ms, r_opens_ms = 0, '', 'cancelled', 0, 0
-- A listener whose turn it was is told, and comes at once; else the first in line is next.
tell()
local told = r_waits == LISTENING and slot_taken()
clear_slot()
local following = not told and first_in_line(TOLD)
local homes, L = '', nil
if r_waiting > 0 then
  redis.call('PERSIST', KEYS[1])
  L = {}
  --> entries
  --> call
  L.finish(false)
end
--> write
if following then
  leave_line(following)
  tell()
end
return 1
