-- Whoever listens stands in line, a sorted set beside the record, and blocks on a list of its own: the first
-- in line gets the slot when that is free, and is told when the lease is. The braces keep all on one server.

local TOLD, LINE = 1000, 5000

local function beside(name)
  return (string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}') .. ':' .. name
end

local function stand_in_line(run)
  redis.call('ZADD', beside('line'), 'NX', tick, run)
  redis.call('PEXPIRE', beside('line'), LINE)
end

local function leave_line(run)
  redis.call('ZREM', beside('line'), run)
end

local function first_in_line(life)
  local run = not slot_taken() and redis.call('ZRANGE', beside('line'), 0, 0)[1]
  if run then fill_slot(run, now + life, 2) end
  return run
end

local function tell()
  if r.first ~= 2 or not slot_taken() then return end
  redis.call('RPUSH', beside(r.slot), '1')
  redis.call('PEXPIRE', beside(r.slot), TOLD)
end
