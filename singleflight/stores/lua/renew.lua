-- renew: the delivery still works.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock, ttl in ms, fence, started in ms, opens in ms, ms since the last renewal that succeeded
-- ARGV[2]  attempt        ARGV[3]  run          ARGV[4]  token        ARGV[5]  holder
-- return   'renewed', 'restored' (the record was gone) or 'lost'

local ttl, fence, started_ms, opens_ms, age = struct.unpack('>ddddd', ARGV[1], 17)
local token = ARGV[4]

if missing then
  if age >= remember then return 'lost' end
  r.token, r.run, r.holder, r.held = token, ARGV[3], ARGV[5], 1
  r.fence, r.started_ms, r.opens_ms = fence, started_ms, opens_ms
  mark(r.run, ARGV[2], '0')
elseif r.token ~= token or r.held == 0 or r.outcome ~= '' then
  return 'lost'
end
r.expires_ms, r.ttl_ms = now + ttl, ttl
save()
return missing and 'restored' or 'renewed'
