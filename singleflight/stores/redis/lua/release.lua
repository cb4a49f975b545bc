-- release: the delivery is over.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock, grace in ms (0 ends the lease at once), again in ms (0 keeps no slot), 0 if this
--          delivery never began the body
-- ARGV[2]  attempt        ARGV[3]  run          ARGV[4]  token        ARGV[5]  outcome
-- ARGV[6]  the homes that can be published for, one in a row
-- return   1 if the token was the record's, else 0; where there is a line, a list of this and what was called as in
--          look.lua

--> read
--> runs
--> beside
--> tell

local grace, again, began = struct.unpack('>ddd', ARGV[1], 17)
local attempt, run, outcome, homes = ARGV[2], ARGV[3], ARGV[5], ARGV[6]

-- A release whose reply was lost is sent again, perhaps when the attempt that it announced runs already.
local before = seen(run)
local overtaken = before and before > tonumber(attempt)
local own = not missing and r_token == ARGV[4]
if missing then r_run = run end
if outcome == 'finished' or outcome == 'failed' or outcome == 'cancelled' then
  mark(run, INFINITE, '1')
  if r_slot == run then clear_slot() end
elseif outcome == 'retrying' then
  mark(run, attempt, '1')
end
if again > 0 and not overtaken and (r_slot == run or not slot_taken()) then fill_slot(run, now + again, PASSED) end
if own and r_held > 0 then
  -- The first outcome stays: a hard-killed body may be released twice, by child and by parent.
  if r_outcome == '' then r_outcome = outcome end
  if grace > 0 then
    r_expires_ms = math.min(r_expires_ms, now + grace)
  else
    if began == 0 and r_held == 2 then
      -- Of a resumed run an earlier delivery may have begun, whatever this one knows.
      r_started_ms, r_opens_ms = 0, 0
      if outcome == 'requeued' then forget(run) end
    end
    r_held = 0
  end
end
local L
if r_waiting > 0 then
  -- A full server refuses what may grow, unless the script has written before.
  redis.call('PERSIST', KEYS[1])
  L = {}
  --> entries
  --> call
  local entry = L.find(run)
  if outcome == 'finished' or outcome == 'failed' or outcome == 'cancelled' then
    if entry then L.remove(entry) end
    if r_waiting > 0 then L.wake() end
  elseif entry and outcome == 'retrying' and entry.attempt <= tonumber(attempt) then
    L.remove(entry)
  elseif entry and before and entry.attempt == 0 and not seen(run) then
    -- What the grant had written was taken back: the run has not begun.
    entry.begun = false
    L.place(entry)
    L.put(entry)
  end
  L.finish(false)
end
--> write
if own and r_held == 0 then tell() end
if L then return {own and 1 or 0, unpack(L.called)} end
return own and 1 or 0
