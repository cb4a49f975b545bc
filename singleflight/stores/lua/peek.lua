-- peek: read the record, with its times put right, and change nothing.
--
-- KEYS[1]  the lease's key
-- return   {} if there is none, else {now ms, ms until it is forgotten, then field, value, field, value, ...}

if missing then return {} end
local reply = {now, redis.call('PTTL', KEYS[1])}
for _, names in ipairs({TEXTS, NUMBERS}) do
  for _, name in ipairs(names) do
    reply[#reply + 1], reply[#reply + 2] = name, r[name]
  end
end
return reply
