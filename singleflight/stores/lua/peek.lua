-- peek: read the record, with its times put right, and change nothing.
--
-- KEYS[1]  the lease's key
-- return   {} if there is none, else {now ms, ms until it is forgotten, the record}

if missing then return {} end
return {now, redis.call('PTTL', KEYS[1]), cjson.encode(r)}
