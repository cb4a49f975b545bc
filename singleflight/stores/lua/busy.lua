-- A refusal: {reason, run in the way, ms until it lapses, its holder, its start, claimant resumed, slot, run ended}
local function busy(reason, run, retry_ms, resumed)
  local attempt, ended = seen(r.run)
  local final = ended == '1' and attempt >= tonumber(INFINITE)
  return {
    reason, run, retry_ms, r.holder, r.started_ms, resumed and 1 or 0, slot_taken() and r.slot or '', final and 1 or 0
  }
end
