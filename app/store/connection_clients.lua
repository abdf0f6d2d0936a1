-- Who runs which client of a connection, and what the clients report; both expire.
--
-- KEYS[1] <base>:leases:<id>   hash    client -> "<expiry, ms since the epoch> <generation> <node>"
-- KEYS[2] <base>:reports:<id>  hash    client -> "<expiry> <report, JSON>"
-- KEYS[3] <base>:generation    string  counts all leases of all connections
-- KEYS[4] <base>:runners       hash    node -> expiry; the nodes that run connections
-- ARGV[1] operation, ARGV[2] client, then:
--   claim    node ttl_ms clients     -> generation of the new lease, 0 if another node has one,
--                                       -1 if the node has its share of ``clients`` already (0: any)
--   surplus  node clients            -> 1 if the node has more than its share, this client the last
--   present  node ttl_ms             -> 1; the node runs connections for so long; 0 ms: no longer
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

-- How many of the clients the node has, the highest of them, and how many are its share.
local function share(clients)
  local nodes, flat = 0, redis.call('HGETALL', KEYS[4])
  for i = 1, #flat, 2 do
    if flat[i] == node or tonumber(flat[i + 1]) > now then nodes = nodes + 1 end
  end
  local count, highest = 0, -1
  flat = redis.call('HGETALL', KEYS[1])
  for i = 1, #flat, 2 do
    local _, owner = lease_of(flat[i + 1])
    if owner == node then
      count, highest = count + 1, math.max(highest, tonumber(flat[i]))
    end
  end
  return count, highest, math.ceil(clients / math.max(nodes, 1))
end

if operation == 'present' then
  local ttl, flat = tonumber(ARGV[4]), redis.call('HGETALL', KEYS[4])
  for i = 1, #flat, 2 do
    if tonumber(flat[i + 1]) <= now then redis.call('HDEL', KEYS[4], flat[i]) end
  end
  if ttl > 0 then
    redis.call('HSET', KEYS[4], node, string.format('%.0f', now + ttl))
  else
    redis.call('HDEL', KEYS[4], node)
  end
  return 1
elseif operation == 'surplus' then
  local count, highest, most = share(tonumber(ARGV[4]))
  return count > most and highest == tonumber(client) and 1 or 0
elseif operation == 'owners' then
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
  local clients = tonumber(ARGV[5])
  if clients > 0 and not owner then
    local count, _, most = share(clients)
    if count >= most then return -1 end
  end
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
