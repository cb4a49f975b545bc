-- evict: end the lease by force and leave a tombstone, so that its holder learns that it lost it.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock
-- return   1 if there was a record, else 0

--> read
--> beside
--> tell

if missing then return 0 end
r_held, r_token, r_outcome, r_started_ms, r_opens_ms = 0, '', 'cancelled', 0, 0
--> write
tell()
return 1
