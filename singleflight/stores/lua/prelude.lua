-- Put before every operation: reads the record of KEYS[1], puts its times right, can save it.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  numbers, packed, because to a server each word costs more than all of them: first
--   remember: milliseconds for which the record outlives its last use
--   clock: 0 in production; tests put the time here, in microseconds of a clock of their own
--
-- The record is one packed string: one value to read and one to write, and much less work for a server than
-- a hash or numbers as text. `singleflight show` prints it. Its parts, in the order of LAYOUT:
--   'sf', version    marks a record of ours
--   held             1 until released or evicted
--   first            1 if the slot is a reservation, 2 if it is one of somebody who listens
--   kept, over       how many runs are remembered, and how many of them have ended
--   fence            number of the last grant, at least the clock's microseconds
--   expires_ms       end of the lease        ttl_ms   its length
--   started_ms       start of the run        opens_ms end of its window
--   slot_expires_ms  until when the slot's run waits
--   refused          how many claims that did not wait met another run
--   refused_ms       when the last one did   refused_reason  why
--   token, run       the delivery and the run that were granted last
--   outcome, holder  how it ended, who it was
--   slot             the run that waits
--   runs             all the rest, see runs.lua

local VERSION = 1
-- Doubles, because a server of 32 bits has no longer integers; each text after its length.
local LAYOUT = '>c2BBBBBddddddddI4c0I4c0I4c0I4c0I4c0I4c0'

local remember, tick = struct.unpack('>dd', ARGV[1])
if tick == 0 then
  local time = redis.call('TIME')
  tick = time[1] * 1000000 + time[2]
end
local now = math.floor(tick / 1000)

-- Sixteen fields, and the rest apart: a seventeenth doubles what a server does to make such a table.
local r = {
  held = 0, first = 0, fence = 0, expires_ms = 0, ttl_ms = 0, started_ms = 0, opens_ms = 0,
  slot_expires_ms = 0, refused = 0, refused_ms = 0, refused_reason = '',
  token = '', run = '', outcome = '', holder = '', slot = ''
}
local runs, kept, over = '', 0, 0

local stored = redis.call('GET', KEYS[1])
local missing = not stored
if stored then
  if string.sub(stored, 1, 2) ~= 'sf' or #stored < 4 then return redis.error_reply('WRONGTYPE not a record') end
  local mark, version, runs_at = nil, string.byte(stored, 3), nil
  if version ~= VERSION then return redis.error_reply('RECORDVERSION ' .. version) end
  mark, version, r.held, r.first, kept, over, r.fence, r.expires_ms, r.ttl_ms, r.started_ms, r.opens_ms,
    r.slot_expires_ms, r.refused, r.refused_ms, r.refused_reason, r.token, r.run, r.outcome, r.holder, r.slot,
    runs_at = struct.unpack(LAYOUT, stored)
  runs = string.sub(stored, runs_at)
end

-- Clocks step back: no time may be further ahead than it can be.
if r.expires_ms > now + r.ttl_ms then r.expires_ms = now + r.ttl_ms end
if r.started_ms > now then
  r.opens_ms = math.max(0, r.opens_ms - (r.started_ms - now))
  r.started_ms = now
end

local live = r.held == 1 and r.expires_ms > now

local function slot_taken()
  return r.slot ~= '' and r.slot_expires_ms > now
end

local function fill_slot(run, expires_ms, first)
  r.slot, r.slot_expires_ms, r.first = run, expires_ms, first
end

-- A full server (maxmemory, noeviction) refuses a script whose first write may grow the data set. PEXPIRE may
-- not, so renewals and releases begin with it there; a new grant (`refusable`) does not.
local function save(refusable)
  local life = math.max(now, r.expires_ms, r.opens_ms, r.slot_expires_ms) - now + remember
  local record = struct.pack(
    LAYOUT, 'sf', VERSION, r.held, r.first, kept, over, r.fence, r.expires_ms, r.ttl_ms, r.started_ms, r.opens_ms,
    r.slot_expires_ms, r.refused, r.refused_ms, #r.refused_reason, r.refused_reason, #r.token, r.token, #r.run, r.run,
    #r.outcome, r.outcome, #r.holder, r.holder, #r.slot, r.slot
  ) .. runs
  if refusable then
    redis.call('SET', KEYS[1], record, 'PX', life)
  elseif redis.pcall('SET', KEYS[1], record, 'PX', life).err then
    redis.call('PEXPIRE', KEYS[1], life)
    redis.call('SET', KEYS[1], record, 'PX', life)
  end
end
