-- write: save the record. A full server (maxmemory, noeviction) refuses a script whose first write may grow the
-- data set. PEXPIRE may not, so renewals and releases go on with it; what is `granted` anew stays refused.
local life = math.max(now, r_expires_ms, r_opens_ms, r_slot_expires_ms, r_moment_ms) - now + remember
local in_line = ''
if r_waiting > 0 then
  in_line = struct.pack(IN_LINE, r_waiting, r_parked, r_queued, r_order, r_call_no, r_line_ms, r_moment_ms) .. r_homes
end
local record = struct.pack(
  LAYOUT, 'sf', VERSION, r_held, r_waits, r_kept, r_over, r_fence, r_expires_ms, r_ttl_ms, r_started_ms, r_opens_ms,
  r_slot_expires_ms, r_refused, r_refused_ms, #r_refused_reason, r_refused_reason, #r_token, r_token, #r_run, r_run,
  #r_outcome, r_outcome, #r_holder, r_holder, #r_slot, r_slot, #in_line, in_line
) .. r_runs
if r_parked > 0 then
  -- While messages wait, this has no end.
  redis.call('SET', KEYS[1], record)
elseif redis.pcall('SET', KEYS[1], record, 'PX', life).err then
  if not granted then redis.call('PEXPIRE', KEYS[1], life) end
  redis.call('SET', KEYS[1], record, 'PX', life)
end
