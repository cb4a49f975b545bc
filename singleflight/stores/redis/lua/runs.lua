-- What a record remembers of runs, oldest first: '\255', the run, '\254', 1 if its attempt has ended or 0, and
-- the attempt. No text has these two bytes in it, because UTF-8 never has.

local RUNS_KEPT, INFINITE = 64, '1073741824'

-- The run's attempt, '1' if that has ended or '0', and from where to where all that stands.
local function seen(run)
  local from, to = string.find(r_runs, '\255' .. run .. '\254', 1, true)
  if from then
    local ended, attempt, after = string.match(r_runs, '^(%d)(%d+)()', to + 1)
    return tonumber(attempt), ended, from, after
  end
end

-- Remember a run that stands there, from where to where, no longer.
local function drop(ended, from, after)
  r_runs = string.sub(r_runs, 1, from - 1) .. string.sub(r_runs, after)
  r_kept, r_over = r_kept - 1, r_over - ended
end

local function forget(run)
  local attempt, ended, from, after = seen(run)
  if attempt then drop(ended, from, after) end
end

-- Remember the run at the end of the list; attempt and end only ever rise.
local function mark(run, attempt, ended)
  local before, before_ended, from, after = seen(run)
  if before then
    local number = tonumber(attempt)
    if before > number or (before == number and before_ended >= ended) then return end
  elseif r_kept == RUNS_KEPT then
    -- An ended run that is forgotten may start again; an open one would be taken for a duplicate. Half of
    -- the room is for each, because some open ones never come back.
    before_ended = r_over + ended > RUNS_KEPT / 2 and '1' or '0'
    from, after = string.find(r_runs, '\255[^\255]*\254' .. before_ended .. '%d+')
    after = after + 1
  end
  if from then drop(before_ended, from, after) end
  r_runs = r_runs .. '\255' .. run .. '\254' .. ended .. attempt
  r_kept, r_over = r_kept + 1, r_over + ended
end
