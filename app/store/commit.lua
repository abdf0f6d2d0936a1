-- One change to one twin: compare, write, append to the journal. All or nothing, all in one shard.
--
-- KEYS[1] twin record, KEYS[2] journal, KEYS[3] policy (only used with ARGV[7])
-- ARGV[1] tag of the state the change was computed from, "" if there was none
-- ARGV[2] new record (begins with its own tag)   ARGV[3] entries to keep in the journal, about
-- ARGV[4..6] the entry: meta, headers, value ("" = none)   ARGV[7] policy to create with the twin, or ""
-- ARGV[8] ms after which the record goes: it is that of a deleted thing, whose revision goes on for a while
-- KEYS[4] record of an accepted request, ARGV[9] the response that goes into it (then ARGV[8] may be "")
-- ARGV[10] the text of a deleted policy, which the one in ARGV[7] may replace
-- ARGV[11] when the policy in ARGV[7] is due (ms since the epoch), ARGV[12] its id, the last of KEYS what is due
-- Returns the entry's id, or {1, record} if the twin has changed meanwhile, {2} if the policy exists.
local tag = redis.call('GETRANGE', KEYS[1], 0, 19)
if tag ~= ARGV[1] then return {1, redis.call('GET', KEYS[1])} end
if ARGV[7] ~= '' and not redis.call('SET', KEYS[3], ARGV[7], 'NX') then
  if redis.call('GET', KEYS[3]) ~= ARGV[10] then return {2} end
  redis.call('SET', KEYS[3], ARGV[7])
end
if (ARGV[11] or '') ~= '' then redis.call('ZADD', KEYS[#KEYS], ARGV[11], ARGV[12]) end
if (ARGV[8] or '') ~= '' then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[8])
else
  redis.call('SET', KEYS[1], ARGV[2])
end
local id
if ARGV[6] == '' then
  id = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'm', ARGV[4], 'h', ARGV[5])
else
  id = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'm', ARGV[4], 'h', ARGV[5], 'v', ARGV[6])
end
if (ARGV[9] or '') ~= '' then take(KEYS[4], 'response', ARGV[9]) end
return id
