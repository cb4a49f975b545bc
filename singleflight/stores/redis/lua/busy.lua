-- busy: the refusal: {reason, run in the way, ms until it lapses, its holder, its start, whether the claimant has
-- begun before, the slot, whether that run has ended for good}
local last, last_ended = seen(r_run)
local refusal = {
  reason, in_the_way, retry_ms, r_holder, r_started_ms, resumed and 1 or 0, slot_taken() and r_slot or '',
  last_ended == '1' and last >= tonumber(INFINITE) and 1 or 0
}
