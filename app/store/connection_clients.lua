-- Who runs which client of a connection, and what the clients report; both expire.
--
-- KEYS[1] <base>:leases:<id>   hash    client -> "<expiry, ms since the epoch> <generation> <node>"
-- KEYS[2] <base>:reports:<id>  hash    client -> "<expiry> <report, JSON>"
-- KEYS[3] <base>:generation    string  counts all leases of all connections
-- ARGV[1] operation, ARGV[2] client, then:
--   claim    node ttl_ms             -> generation of the new lease, 0 if another node has one
--   renew    node ttl_ms generation  -> 1, or 0 if that lease is over
--   release  node generation         -> 1, or 0 if that lease is over
--   report   node ttl_ms report      -> 1, or 0 if another node has the client
--   owners                           -> flat list client, node, generation
--   reports                          -> list of reports
local operation, client, node = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function lease_of(text)
  if not text then return nil end
  local expiry, generation, owner = string.match(text, '^(%d+) (%d+) (.*)$')
  if tonumber(expiry) <= now then return nil end
  return generation, owner
end

local function keep(key, value, ttl)
  redis.call('HSET', key, client, string.format('%.0f ', now + ttl) .. value)
  if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
end

if operation == 'owners' then
  local found, flat = {}, redis.call('HGETALL', KEYS[1])
  for i = 1, #flat, 2 do
    local generation, owner = lease_of(flat[i + 1])
    if generation then
      found[#found + 1], found[#found + 2], found[#found + 3] = flat[i], owner, generation
    end
  end
  return found
elseif operation == 'reports' then
  local found, flat = {}, redis.call('HGETALL', KEYS[2])
  for i = 1, #flat, 2 do
    local expiry, report = string.match(flat[i + 1], '^(%d+) (.*)$')
    if tonumber(expiry) > now then found[#found + 1] = report end
  end
  return found
end

local generation, owner = lease_of(redis.call('HGET', KEYS[1], client))
if operation == 'claim' then
  if owner and owner ~= node then return 0 end
  local fresh = redis.call('INCR', KEYS[3])
  keep(KEYS[1], fresh .. ' ' .. node, tonumber(ARGV[4]))
  return fresh
elseif operation == 'report' then
  if owner and owner ~= node then return 0 end
  keep(KEYS[2], ARGV[5], tonumber(ARGV[4]))
  return 1
end

local mine = owner == node and generation == ARGV[operation == 'renew' and 5 or 4]
if not mine then return 0 end
if operation == 'renew' then
  keep(KEYS[1], generation .. ' ' .. node, tonumber(ARGV[4]))
else
  redis.call('HDEL', KEYS[1], client)
end
return 1
