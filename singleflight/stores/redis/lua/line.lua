-- Whoever listens stands in line, a sorted set: the first gets the slot when that is free.
local LINE = 5000

local function leave_line(run)
  redis.call('ZREM', beside('line'), run)
end

local function first_in_line(life)
  local run = not slot_taken() and redis.call('ZRANGE', beside('line'), 0, 0)[1]
  if run then fill_slot(run, now + life, LISTENING) end
  return run
end
