-- One change to one twin: compare, write, append to the journal. All or nothing, all in one shard.
--
-- KEYS[1] twin record, KEYS[2] journal, KEYS[3] policy (only used with ARGV[7])
-- ARGV[1] tag of the state the change was computed from, "" if there was none
-- ARGV[2] new record (begins with its own tag)   ARGV[3] entries to keep in the journal, about
-- ARGV[4..6] the entry: meta, headers, value ("" = none)   ARGV[7] policy to create with the twin, or ""
-- Returns the entry's id, or {1, record} if the twin has changed meanwhile, {2} if the policy exists.
local tag = redis.call('GETRANGE', KEYS[1], 0, 19)
if tag ~= ARGV[1] then return {1, redis.call('GET', KEYS[1])} end
if ARGV[7] ~= '' and not redis.call('SET', KEYS[3], ARGV[7], 'NX') then return {2} end
redis.call('SET', KEYS[1], ARGV[2])
if ARGV[6] == '' then
  return redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'm', ARGV[4], 'h', ARGV[5])
end
return redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'm', ARGV[4], 'h', ARGV[5], 'v', ARGV[6])
