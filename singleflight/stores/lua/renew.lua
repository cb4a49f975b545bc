-- renew: the delivery still works.
--
-- KEYS[1]  the lease's key
-- ARGV[3]  run         ARGV[4]  attempt         ARGV[5]  token      ARGV[6]  fence
-- ARGV[7]  ttl, ms     ARGV[8]  started, ms     ARGV[9]  opens, ms
-- ARGV[10] ms since the last renewal that succeeded                 ARGV[11] holder
-- return   'renewed', 'restored' (the record was gone) or 'lost'

local token, ttl = ARGV[5], tonumber(ARGV[7])

if missing then
  if tonumber(ARGV[10]) >= tonumber(ARGV[1]) then return 'lost' end
  r.token, r.run, r.holder, r.held = token, ARGV[3], ARGV[11], 1
  r.fence, r.started_ms, r.opens_ms = ARGV[6], tonumber(ARGV[8]), tonumber(ARGV[9])
  mark(r.run, tonumber(ARGV[4]), 0)
elseif r.token ~= token or r.held == 0 or r.outcome ~= '' then
  return 'lost'
end
r.expires_ms, r.ttl_ms = now + ttl, ttl
save()
return missing and 'restored' or 'renewed'
