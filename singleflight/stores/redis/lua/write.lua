-- write: save the record. A full server (maxmemory, noeviction) refuses a script whose first write may grow the
-- data set. PEXPIRE may not, so renewals and releases go on with it; what is `granted` anew stays refused.
local life = math.max(now, r_expires_ms, r_opens_ms, r_slot_expires_ms) - now + remember
local record = struct.pack(
  LAYOUT, 'sf', VERSION, r_held, r_waits, r_kept, r_over, r_fence, r_expires_ms, r_ttl_ms, r_started_ms, r_opens_ms,
  r_slot_expires_ms, r_refused, r_refused_ms, #r_refused_reason, r_refused_reason, #r_token, r_token, #r_run, r_run,
  #r_outcome, r_outcome, #r_holder, r_holder, #r_slot, r_slot
) .. r_runs
if redis.pcall('SET', KEYS[1], record, 'PX', life).err then
  if not granted then redis.call('PEXPIRE', KEYS[1], life) end
  redis.call('SET', KEYS[1], record, 'PX', life)
end
