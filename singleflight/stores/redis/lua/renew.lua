-- renew: the delivery still works.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock, ttl in ms, fence, started in ms, opens in ms, ms since the last renewal that succeeded
-- ARGV[2]  attempt        ARGV[3]  run          ARGV[4]  token        ARGV[5]  holder
-- return   'renewed', 'restored' (the record was gone) or 'lost'

--> read
--> runs

local ttl, fence, started_ms, opens_ms, age = struct.unpack('>ddddd', ARGV[1], 17)
local token = ARGV[4]

if missing then
  if age >= remember then return 'lost' end
  r_token, r_run, r_holder, r_held = token, ARGV[3], ARGV[5], 1
  r_fence, r_started_ms, r_opens_ms = fence, started_ms, opens_ms
  mark(r_run, ARGV[2], '0')
elseif r_token ~= token or r_held == 0 or r_outcome ~= '' then
  return 'lost'
end
r_expires_ms, r_ttl_ms = now + ttl, ttl
--> write
return missing and 'restored' or 'renewed'
