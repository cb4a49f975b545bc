-- park: what becomes of the own entry, and of a refused claim that is to wait in line.
local came = entry and call_no > 0 and call_no == entry.no
local function uncall()
  entry.till, entry.no, entry.hand, entry.hailed = 0, 0, false, false
end
if granted then
  if entry and (came or L.by_itself[entry.kind]) then
    L.remove(entry)
  elseif entry then
    uncall()
    entry.calls, entry.begun = 0, true
    L.place(entry)
    L.put(entry)
  end
elseif reason == 'finished' then
  if entry and entry.attempt <= attempt then L.remove(entry) end
elseif reason ~= 'ending' then
  if entry and (came or L.by_itself[entry.kind]) then
    if entry.till > now then entry.calls = 0 end
    uncall()
    L.place(entry)
    L.put(entry)
  end
  if kind and reason ~= 'superseded' then
    local home, message, life = ARGV[9], ARGV[10], tonumber(ARGV[11])
    local kept
    if not entry then
      if order == 0 then order = math.max(r_order + 1, now) end
      r_order = math.max(r_order, order)
      entry = {
        run = run, attempt = attempt, order = order, kind = 'parked', home = '', window = 0, begun = false, size = 0,
        since = now, due = 0, look = 0, till = 0, no = 0, calls = 0, hand = false, hailed = false, passed = 0, away = 0,
        ends = 0, life = 0, ending = false, standing = '', moment = 0
      }
    end
    if L.by_itself[kind] and entry.size == 0 then
      entry.kind, entry.ends, entry.life = kind, now + life, life
    elseif message ~= '' and (entry.size == 0 or entry.attempt <= attempt) then
      kept = message
      entry.kind, entry.size, entry.home, entry.ends, entry.life = kind, #message, home, 0, 0
    end
    if entry.kind == 'joining' then
      entry.look = entry.look > 0 and math.min(2 * entry.look, 60000) or life
      entry.due = now + entry.look
    end
    entry.attempt, entry.begun, entry.window = math.max(entry.attempt, attempt), entry.begun or resumed, window
    L.place(entry)
    L.put(entry, kept)
    local known = home == ''
    for one in string.gmatch(r_homes, '[^\n]+') do known = known or one == home end
    if not known then
      -- Without a moment the index of every home is written.
      r_homes, r_moment_ms = r_homes .. (r_homes == '' and '' or '\n') .. home, 0
    end
  end
end
