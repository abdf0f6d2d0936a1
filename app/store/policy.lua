-- One change of one policy: compare, write, tell every process. All or nothing.
--
-- KEYS[1] policy document
-- ARGV[1] text of the state the change was computed from, "" if there was none
-- ARGV[2] new text   ARGV[3] channel to tell   ARGV[4] policy id
-- ARGV[5] ms after which the text goes: it is what a deleted policy leaves, or "" to keep it
-- Returns 1, or 0 if the policy has changed meanwhile.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[5] ~= '' then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[5])
else
  redis.call('SET', KEYS[1], ARGV[2])
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
