-- One change of one policy: compare, write, tell every process. All or nothing, all in one shard.
--
-- KEYS[1] policy document   KEYS[2] policies that are due some time   KEYS[3] journal
-- ARGV[1] text of the state the change was computed from, "" if there was none
-- ARGV[2] new text, "" for none   ARGV[3] channel to tell, "" to tell nobody   ARGV[4] policy id
-- ARGV[5] ms after which the text goes: it is what a deleted policy leaves; "" to keep it, "same" to
--         leave that as it is
-- ARGV[6] when the policy is due (ms since the epoch), "" for never
-- ARGV[7] entries to keep in the journal, about   ARGV[8..] meta, headers, value of each new entry
-- Returns 1, or 0 if the policy has changed meanwhile.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
elseif ARGV[5] == 'same' then
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
elseif ARGV[5] ~= '' then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[5])
else
  redis.call('SET', KEYS[1], ARGV[2])
end
if ARGV[6] ~= '' then
  redis.call('ZADD', KEYS[2], ARGV[6], ARGV[4])
else
  redis.call('ZREM', KEYS[2], ARGV[4])
end
for i = 8, #ARGV, 3 do
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[7], '*', 'm', ARGV[i], 'h', ARGV[i + 1], 'v', ARGV[i + 2])
end
if ARGV[3] ~= '' then redis.call('PUBLISH', ARGV[3], ARGV[4]) end
return 1
