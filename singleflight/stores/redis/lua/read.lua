-- read: the record of KEYS[1], its times put right; `write` saves what has become of it.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  numbers, packed, because to a server each word costs more than all of them: first
--   remember: milliseconds for which the record outlives its last use
--   clock: 0 in production; tests put the time here, in microseconds of a clock of their own
--
-- The record is one packed string, and its fields are variables here: that is much less work for a server than
-- a hash, or a table, or numbers as text. `singleflight show` prints it. Its parts, in their order:
--   'sf', version      marks a record of ours
--   r_held             0 when released or evicted, 2 if the run was fresh: it had not begun before; else 1
--   r_waits            how the slot's run waits, as in stores/base.py: PASSED, FIRST or LISTENING
--   r_kept, r_over     how many runs are remembered, and how many of them have ended
--   r_fence            number of the last grant, at least the clock's microseconds
--   r_expires_ms       end of the lease        r_ttl_ms    its length
--   r_started_ms       start of the run        r_opens_ms  end of its window
--   r_slot_expires_ms  until when the slot's run waits
--   r_refused          how many claims that did not wait met another run
--   r_refused_ms       when the last one did   r_refused_reason  why
--   r_token, r_run     the delivery and the run that were granted last
--   r_outcome, r_holder  how it ended, who it was
--   r_slot             the run that waits
--   the line           empty if nobody waits, else, packed: r_waiting, r_parked, r_queued, r_order, r_call_no,
--                      r_line_ms, r_moment_ms and r_homes, which are what stores/base.py says
--   r_runs             all the rest, see runs.lua

local VERSION = 2
local PASSED, FIRST, LISTENING = 0, 1, 2
-- Doubles, because a server of 32 bits has no longer integers; each text after its length.
local LAYOUT = '>c2BBBBBddddddddI4c0I4c0I4c0I4c0I4c0I4c0I4c0'
local IN_LINE = '>ddddddd'

local r_held, r_waits, r_kept, r_over, r_slot_expires_ms, r_refused, r_refused_ms = 0, 0, 0, 0, 0, 0, 0
local r_fence, r_expires_ms, r_ttl_ms, r_started_ms, r_opens_ms = 0, 0, 0, 0, 0
local r_refused_reason, r_token, r_run, r_outcome, r_holder, r_slot, r_runs = '', '', '', '', '', '', ''

local r_waiting, r_parked, r_queued, r_order, r_call_no, r_line_ms, r_moment_ms, r_homes = 0, 0, 0, 0, 0, 0, 0, ''

local remember, tick = struct.unpack('>dd', ARGV[1])
if tick == 0 then
  local time = redis.call('TIME')
  tick = time[1] * 1000000 + time[2]
end
local now = math.floor(tick / 1000)

local stored = redis.call('GET', KEYS[1])
local missing = not stored
if stored then
  if string.sub(stored, 1, 2) ~= 'sf' or #stored < 4 then return redis.error_reply('WRONGTYPE not a record') end
  local mark, version, in_line, runs_at = nil, string.byte(stored, 3), nil, nil
  if version ~= VERSION then return redis.error_reply('RECORDVERSION ' .. version) end
  mark, version, r_held, r_waits, r_kept, r_over, r_fence, r_expires_ms, r_ttl_ms, r_started_ms, r_opens_ms,
    r_slot_expires_ms, r_refused, r_refused_ms, r_refused_reason, r_token, r_run, r_outcome, r_holder, r_slot,
    in_line, runs_at = struct.unpack(LAYOUT, stored)
  r_runs = string.sub(stored, runs_at)
  if in_line ~= '' then
    local homes_at
    r_waiting, r_parked, r_queued, r_order, r_call_no, r_line_ms, r_moment_ms, homes_at = struct.unpack(IN_LINE, in_line)
    r_homes = string.sub(in_line, homes_at)
  end

  -- Clocks step back: no time may be further ahead than it can be.
  if r_expires_ms > now + r_ttl_ms then r_expires_ms = now + r_ttl_ms end
  if r_started_ms > now then
    r_opens_ms = math.max(0, r_opens_ms - (r_started_ms - now))
    r_started_ms = now
  end
end

local live = r_held > 0 and r_expires_ms > now
local granted = false

local function slot_taken()
  return r_slot ~= '' and r_slot_expires_ms > now
end

local function fill_slot(run, expires_ms, waits)
  r_slot, r_slot_expires_ms, r_waits = run, expires_ms, waits
end

local function clear_slot()
  fill_slot('', 0, PASSED)
end
