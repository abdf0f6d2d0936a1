-- One change of one policy: compare, write, tell every process. All or nothing.
--
-- KEYS[1] policy document
-- ARGV[1] text of the state the change was computed from, "" if there was none
-- ARGV[2] new text, "" to delete it   ARGV[3] channel to tell   ARGV[4] policy id
-- Returns 1, or 0 if the policy has changed meanwhile.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2])
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
