-- Tell the listener whose slot it is that the lease is free.
local function tell()
  if r_waits ~= LISTENING or not slot_taken() then return end
  redis.call('RPUSH', beside(r_slot), '1')
  redis.call('PEXPIRE', beside(r_slot), TOLD)
end
