-- Who owns a declared label, decided atomically in the store (design: label leases).
-- A label belongs to a holder's session; a holder (a gateway process, a Spark query) keeps one lease
-- for all its sessions. A label whose holder's lease has run out is free.
--
-- KEYS[1] owners  hash        label  -> "<holder>/<session>"
-- KEYS[2] leases  sorted set  holder -> expiry, ms since the epoch
-- ARGV[1] operation, ARGV[2] holder, then:
--   claim    ttl_ms session label...  -> "" or the first label that is taken; all or none are claimed
--   renew    ttl_ms                   -> 1, or 0 if the lease had run out (labels must be claimed anew)
--   release  session label...         -> number of labels freed
--   drop                              -> number of labels freed; the holder's lease ends
--   list                              -> flat list: label, owner, ms left of its lease
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local operation, holder = ARGV[1], ARGV[2]

local function holder_of(owner)
  return string.match(owner, '^([^/]*)/')
end

local function lease_left(name)
  local expiry = redis.call('ZSCORE', KEYS[2], name)
  if not expiry then return 0 end
  return math.max(0, tonumber(expiry) - now)
end

if operation == 'claim' then
  local ttl, owner = tonumber(ARGV[3]), holder .. '/' .. ARGV[4]
  for i = 5, #ARGV do
    local current = redis.call('HGET', KEYS[1], ARGV[i])
    if current and current ~= owner and lease_left(holder_of(current)) > 0 then return ARGV[i] end
  end
  redis.call('ZADD', KEYS[2], now + ttl, holder)
  for i = 5, #ARGV do redis.call('HSET', KEYS[1], ARGV[i], owner) end
  return ''
elseif operation == 'renew' then
  if lease_left(holder) == 0 then return 0 end
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[3]), holder)
  return 1
elseif operation == 'release' then
  local owner, freed = holder .. '/' .. ARGV[3], 0
  for i = 4, #ARGV do
    if redis.call('HGET', KEYS[1], ARGV[i]) == owner then
      freed = freed + redis.call('HDEL', KEYS[1], ARGV[i])
    end
  end
  return freed
elseif operation == 'drop' then
  local freed, all = 0, redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if holder_of(all[i + 1]) == holder then freed = freed + redis.call('HDEL', KEYS[1], all[i]) end
  end
  redis.call('ZREM', KEYS[2], holder)
  return freed
elseif operation == 'list' then
  local result, all = {}, redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local left = lease_left(holder_of(all[i + 1]))
    if left > 0 then
      result[#result + 1] = all[i]
      result[#result + 1] = all[i + 1]
      result[#result + 1] = left
    end
  end
  return result
end
return redis.error_reply('unknown operation ' .. tostring(operation))
