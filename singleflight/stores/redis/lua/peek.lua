-- peek: read the record, with its times put right, and change nothing.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock
-- return   {} if there is none, else {now in ms, ms until it is forgotten, the fields as `write` has them}

--> read

if missing then return {} end
local left = redis.call('PTTL', KEYS[1])
return {
  now, left > 0 and left or remember, r_held, r_waits, r_fence, r_expires_ms, r_ttl_ms, r_started_ms, r_opens_ms,
  r_slot_expires_ms, r_refused, r_refused_ms, r_refused_reason, r_token, r_run, r_outcome, r_holder, r_slot, r_runs, r_waiting, r_parked,
  r_queued, r_order, r_call_no, r_line_ms, r_moment_ms, r_homes
}
