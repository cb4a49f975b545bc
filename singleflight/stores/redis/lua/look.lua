-- look: call because the key's moment has come, or do something else in its line first.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  remember, clock, the number of a call
-- ARGV[2]  the homes that can be published for, one in a row
-- ARGV[3]  look, sent, leave or drop      ARGV[4]  run
-- return   1 if that did something, else 0; then what was called: run, number, order, home, message; and so on

--> read
--> runs
--> beside

local call_no, homes, what, run = struct.unpack('>d', ARGV[1], 17), ARGV[2], ARGV[3], ARGV[4]
local L, did, exact = {}, 0, what == 'look'
if missing and redis.call('EXISTS', beside('waiting')) == 0 then
  for home in string.gmatch(exact and homes or '', '[^\n]+') do redis.call('ZREM', home, KEYS[1]) end
  return {0}
end
-- A full server refuses what may grow, unless the script has written before.
redis.call('PERSIST', KEYS[1])
--> entries
--> call
local entry = run ~= '' and L.find(run)
if entry and what == 'sent' and call_no > 0 and entry.no == call_no then
  entry.size, entry.hand, entry.hailed, entry.passed, entry.away = 0, false, false, 0, 0
  entry.till, entry.ends, entry.life = now + doubled(CALL, entry.calls), now + remember, remember
  L.place(entry)
  L.put(entry)
  did = 1
elseif entry and what == 'leave' then
  L.remove(entry)
  did = 1
elseif entry and what == 'drop' and not (entry.begun or (live and r_run == run)) then
  entry.ending, did = true, 1
  L.place(entry)
  L.put(entry)
end
L.finish(exact)
--> write
return {did, unpack(L.called)}
