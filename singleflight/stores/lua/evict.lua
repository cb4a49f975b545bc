-- evict: end the lease by force and leave a tombstone, so that its holder learns that it lost it.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock
-- return   1 if there was a record, else 0

if missing then return 0 end
r.held, r.token, r.outcome, r.started_ms, r.opens_ms = 0, '', 'cancelled', 0, 0
save()
tell()
return 1
