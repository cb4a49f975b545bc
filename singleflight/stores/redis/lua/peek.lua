-- peek: read the record, with its times put right, and change nothing.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock
-- return   {} if there is none, else {now in ms, ms until it is forgotten, the fields as `write` has them}

--> read

if missing then return {} end
return {
  now, redis.call('PTTL', KEYS[1]), r_held, r_waits, r_fence, r_expires_ms, r_ttl_ms, r_started_ms, r_opens_ms,
  r_slot_expires_ms, r_refused, r_refused_ms, r_refused_reason, r_token, r_run, r_outcome, r_holder, r_slot, r_runs
}
