-- What may be added to the record of an accepted request, whose sender does not wait for the answer.
-- Used by commit.lua (the response, in one stroke with the twin's write), by the gateway and by Spark.
--
-- The record is a hash, made by app/store/accept.lua:
--   request         JSON: the facts of the request (acks/accepted.py)
--   accepted, deadline, done   ms since the epoch, the store's clock; done is there once nothing is owed
--   keep            ms for which the record is kept once it is done
--   left            things still owed         changes   things that have come
--   own             1 if our own response is owed: it is the label twin-persisted, or the only answer
--   ack:<label>     "" while the label is owed, then "<n> <JSON>": the n-th thing that came
--   response        "" until our own processing has succeeded, then as an ack
--   error           only if our own processing has failed: as an ack
--   refused         the last notice of a live response that does not count, JSON; changes nothing else
--
-- take(key, field, value): field is ack:<label>, response, error or refused; value is JSON.
-- Returns 1 if it counts, 0 if it is late, not owed, or there already.
local function take(key, field, value)
  local known = redis.call('HMGET', key, 'deadline', 'done', field, 'left', 'changes', 'keep', 'own', 'response')
  if not known[1] or known[2] then return 0 end
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  if now > tonumber(known[1]) then return 0 end
  if field == 'refused' then
    redis.call('HSET', key, field, value)
    return 1
  end
  local left = tonumber(known[4])
  if field == 'error' then
    -- A change that was made stays made, whatever its sender was told of the way back.
    if known[8] ~= '' then return 0 end
    left = 0
  else
    if known[3] ~= '' then return 0 end
    if field ~= 'response' or known[7] == '1' then left = left - 1 end
  end
  local changes = tonumber(known[5]) + 1
  redis.call('HSET', key, field, changes .. ' ' .. value, 'left', left, 'changes', changes)
  if left == 0 then
    redis.call('HSET', key, 'done', now)
    redis.call('PEXPIRE', key, known[6])
  end
  return 1
end
