-- The documents of connections: stored, counted and told to every process in one step.
--
-- KEYS[1] <base>:documents  hash    id -> document (JSON)
-- KEYS[2] <base>:revisions  hash    id -> how often it was stored
-- KEYS[3] <base>:commands   hash    "<id>/<name>" -> when that command was given last (ms since the epoch)
-- KEYS[4] <base>:version    string  counts all changes; also the channel that gets the changed id
-- ARGV[1] operation, ARGV[2] id, then:
--   create   document most     -> 1; 0 if the id is taken, -1 if there are ``most`` already
--   replace  document revision -> new revision; 0 if there is none, -1 if it is at another revision ("" is any)
--   delete                     -> 1, or 0 if there is none
--   command  name              -> when it was given, later than the last one; 0 if there is no connection
--   read                       -> version, document, revision, flat list command, when; empty: there is none
--   list                       -> version, then documents, revisions and commands as flat lists
local operation, id = ARGV[1], ARGV[2]

local function commands_of(one)
  local found, flat = {}, redis.call('HGETALL', KEYS[3])
  for i = 1, #flat, 2 do
    if string.sub(flat[i], 1, #one + 1) == one .. '/' then
      found[#found + 1] = string.sub(flat[i], #one + 2)
      found[#found + 1] = flat[i + 1]
    end
  end
  return found
end

if operation == 'list' then
  return {
    redis.call('GET', KEYS[4]) or '0', redis.call('HGETALL', KEYS[1]),
    redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3]),
  }
end

local known = redis.call('HEXISTS', KEYS[1], id) == 1
if operation == 'read' then
  if not known then return {} end
  return {
    redis.call('GET', KEYS[4]) or '0', redis.call('HGET', KEYS[1], id),
    redis.call('HGET', KEYS[2], id), commands_of(id),
  }
end

local result = 1
if operation == 'create' then
  if known then return 0 end
  if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then return -1 end
  redis.call('HSET', KEYS[1], id, ARGV[3])
  redis.call('HSET', KEYS[2], id, 1)
elseif not known then
  return 0
elseif operation == 'replace' then
  if ARGV[4] ~= '' and redis.call('HGET', KEYS[2], id) ~= ARGV[4] then return -1 end
  redis.call('HSET', KEYS[1], id, ARGV[3])
  result = redis.call('HINCRBY', KEYS[2], id, 1)
elseif operation == 'delete' then
  redis.call('HDEL', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
  local given = commands_of(id)
  for i = 1, #given, 2 do redis.call('HDEL', KEYS[3], id .. '/' .. given[i]) end
elseif operation == 'command' then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local last = tonumber(redis.call('HGET', KEYS[3], id .. '/' .. ARGV[3]) or 0)
  result = math.max(now, last + 1)
  redis.call('HSET', KEYS[3], id .. '/' .. ARGV[3], string.format('%.0f', result))
end
redis.call('INCR', KEYS[4])
redis.call('PUBLISH', KEYS[4], id)
return result
