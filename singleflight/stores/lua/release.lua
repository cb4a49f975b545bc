-- release: the delivery is over.
--
-- KEYS[1]  the lease's key
-- ARGV[3]  run         ARGV[4]  attempt         ARGV[5]  token      ARGV[6]  outcome
-- ARGV[7]  grace, ms: 0 ends the lease at once
-- ARGV[8]  again, ms: 0 keeps no slot           ARGV[9]  0 if no body of the run ever began
-- return   1 if the token was the record's, else 0

local FINAL = {finished = true, failed = true, cancelled = true}
local run, attempt, outcome = ARGV[3], tonumber(ARGV[4]), ARGV[6]
local grace, again, began = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9] == '1'

-- A release whose reply was lost is sent again, perhaps when the attempt that it announced runs already.
local before = seen(run)
local overtaken = before and before[2] > attempt
local own = not missing and r.token == ARGV[5]
if missing then r.run = run end
if FINAL[outcome] then
  mark(run, INFINITE, 1)
elseif outcome == 'retrying' then
  mark(run, attempt, 1)
end
if again > 0 and not overtaken and (r.slot == run or not slot_taken()) then fill_slot(run, now + again, 0) end
if own and r.held == 1 then
  -- The first outcome stays: a hard-killed body may be released twice, by child and by parent.
  if r.outcome == '' then r.outcome = outcome end
  if grace > 0 then
    r.expires_ms = math.min(r.expires_ms, now + grace)
  else
    r.held = 0
    if not began then r.started_ms, r.opens_ms = 0, 0 end
  end
end
save()
if own and r.held == 0 then tell() end
return own and 1 or 0
