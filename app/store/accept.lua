-- Makes the record of an accepted request (its fields: acks/accepted.lua), unless there is one.
--
-- KEYS[1] record
-- ARGV[1] request (JSON)   ARGV[2] timeout ms   ARGV[3] keep ms   ARGV[4] 1 if our response is owed
-- ARGV[5..] labels that others owe
-- Returns the deadline (ms since the epoch), or 0 if there is a record already.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local timeout, keep = tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('HSET', KEYS[1], 'request', ARGV[1], 'accepted', now, 'deadline', now + timeout, 'keep', keep,
  'left', tonumber(ARGV[4]) + #ARGV - 4, 'changes', 0, 'own', ARGV[4], 'response', '')
for i = 5, #ARGV do redis.call('HSET', KEYS[1], 'ack:' .. ARGV[i], '') end
redis.call('PEXPIRE', KEYS[1], timeout + keep)
return now + timeout
