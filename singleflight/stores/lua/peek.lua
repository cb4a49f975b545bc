-- peek: read the record, with its times put right, and change nothing.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock
-- return   {} if there is none, else {now in ms, ms until it is forgotten, runs, field, value, field, value, ...}

if missing then return {} end
local fields = {now, redis.call('PTTL', KEYS[1]), runs}
for name, value in pairs(r) do
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
return fields
