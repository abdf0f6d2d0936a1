-- Who owns a declared label, decided atomically in the store (design: label leases).
-- A label belongs to one session of a holder, or to one group, whose members all have the same set
-- of labels. A holder (a gateway process, a Spark query) keeps one lease for all its sessions. What
-- belongs to a holder whose lease has run out is free; so is a group with no other members.
--
-- KEYS[1] <base>:owners  hash        label -> "<holder>/<session>", or "/<group>"
-- KEYS[2] <base>:leases  sorted set  holder -> expiry, ms since the epoch
-- and in the same slot:
--   <base>:of:<holder>   hash        session -> "<group or nothing> <label>,<label>"
--   <base>:groups        hash        group -> its labels, sorted, with commas
--   <base>:in:<group>    sorted set  its members "<holder>/<session>", all with the score 0
--   <base>:version       string      another one after every change of a group; also published there
-- ARGV[1] operation, ARGV[2] holder, then:
--   claim    ttl_ms session label...        -> "" or the first label that is taken; all or none are claimed
--   join     ttl_ms session group label...  -> the same for a member of a group
--   renew    ttl_ms                  -> 1, or 0 if the lease had run out (labels must be claimed anew)
--   release  session                 -> number of labels freed
--   mine                             -> the holder's sessions
--   drop                             -> the sessions that are left, 0: call again until then; ends the lease
--   groups   version                 -> version, flat list holder, ms left of its lease, and unless that is
--                                       still the version: flat list group, labels, list of members
local MAX_DROPPED, MAX_PURGED = 1000, 100 -- sessions in one call, so that none holds up the store

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local operation, holder = ARGV[1], ARGV[2]
local base = string.sub(KEYS[1], 1, -8)
local groups = base .. ':groups'
local changed = false

local function sessions_of(name) return base .. ':of:' .. name end
local function members_of(group) return base .. ':in:' .. group end
local function holder_of(owner) return string.match(owner, '^([^/]*)/') end

local function lease_left(name)
  local expiry = redis.call('ZSCORE', KEYS[2], name)
  if not expiry then return 0 end
  return math.max(0, tonumber(expiry) - now)
end

-- Goes from holder to holder: '0' is the character after '/'.
local function is_alive(group)
  local after = '-'
  while true do
    local member = redis.call('ZRANGEBYLEX', members_of(group), after, '+', 'LIMIT', 0, 1)[1]
    if not member then return false end
    local name = holder_of(member)
    if lease_left(name) > 0 then return true end
    after = '[' .. name .. '0'
  end
end

local function is_taken(owner)
  if string.sub(owner, 1, 1) == '/' then return is_alive(string.sub(owner, 2)) end
  return lease_left(holder_of(owner)) > 0
end

local function free(labels, owner)
  local freed = 0
  for label in string.gmatch(labels, '[^,]+') do
    if redis.call('HGET', KEYS[1], label) == owner then
      freed = freed + redis.call('HDEL', KEYS[1], label)
    end
  end
  return freed
end

local function bury(group)
  local freed = free(redis.call('HGET', groups, group) or '', '/' .. group)
  redis.call('HDEL', groups, group)
  redis.call('DEL', members_of(group))
  changed = true
  return freed
end

local function leave(name, session)
  local text = redis.call('HGET', sessions_of(name), session)
  if not text then return 0 end
  redis.call('HDEL', sessions_of(name), session)
  local group, labels = string.match(text, '^(%S*) (.*)$')
  local owner = name .. '/' .. session
  if group == '' then return free(labels, owner) end
  if redis.call('ZREM', members_of(group), owner) == 0 then return 0 end
  changed = true
  if redis.call('EXISTS', members_of(group)) == 1 then return 0 end
  return bury(group)
end

-- Removes what a holder without a lease has left, at most so many sessions; how many are left.
local function clear(name, limit)
  local cursor, key = '0', sessions_of(name)
  repeat
    local page = redis.call('HSCAN', key, cursor, 'COUNT', 100)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      if limit > 0 then leave(name, page[2][i]) end
      limit = limit - 1
    end
  until cursor == '0' or limit <= 0
  local left = redis.call('HLEN', key)
  if left == 0 then redis.call('ZREM', KEYS[2], name) end
  return left
end

local function purge()
  local dead = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1)[1]
  if dead then clear(dead, MAX_PURGED) end
end

local function claim(session, group, first)
  local owner = group == '' and holder .. '/' .. session or '/' .. group
  local labels = {}
  for i = first, #ARGV do labels[#labels + 1] = ARGV[i] end
  if group ~= '' then
    local known = redis.call('HGET', groups, group)
    if known and not is_alive(group) then
      bury(group)
      known = nil
    end
    table.sort(labels)
    if known and known ~= table.concat(labels, ',') then
      for _, label in ipairs(labels) do
        if not string.find(',' .. known .. ',', ',' .. label .. ',', 1, true) then return label end
      end
      return labels[1]
    end
  end
  local before = {}
  for _, label in ipairs(labels) do
    local current = redis.call('HGET', KEYS[1], label)
    if current and current ~= owner then
      if is_taken(current) then return label end
      before[#before + 1] = current
    end
  end
  for _, current in ipairs(before) do
    if string.sub(current, 1, 1) == '/' then bury(string.sub(current, 2)) end
  end
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[3]), holder)
  for _, label in ipairs(labels) do redis.call('HSET', KEYS[1], label, owner) end
  local text = table.concat(labels, ',')
  redis.call('HSET', sessions_of(holder), session, group .. ' ' .. text)
  if group ~= '' then
    redis.call('HSET', groups, group, text)
    if redis.call('ZADD', members_of(group), 0, holder .. '/' .. session) == 1 then changed = true end
  end
  return ''
end

local function listed(version)
  local current = redis.call('GET', base .. ':version') or '0'
  local leases = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf', 'WITHSCORES')
  for i = 2, #leases, 2 do leases[i] = tonumber(leases[i]) - now end
  if current == version then return {current, leases} end
  local found = redis.call('HGETALL', groups)
  local result = {}
  for i = 1, #found, 2 do
    result[#result + 1] = found[i]
    result[#result + 1] = found[i + 1]
    result[#result + 1] = redis.call('ZRANGE', members_of(found[i]), 0, -1)
  end
  return {current, leases, result}
end

local result
if operation == 'claim' then
  result = claim(ARGV[4], '', 5)
  purge()
elseif operation == 'join' then
  result = claim(ARGV[4], ARGV[5], 6)
  purge()
elseif operation == 'renew' then
  result = 0
  if lease_left(holder) > 0 then
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[3]), holder)
    result = 1
  end
  purge()
elseif operation == 'release' then
  result = leave(holder, ARGV[3])
elseif operation == 'mine' then
  result = redis.call('HKEYS', sessions_of(holder))
elseif operation == 'drop' then
  -- Free at once, and others clear it away if this holder does not come to the end of it.
  redis.call('ZADD', KEYS[2], 0, holder)
  result = clear(holder, MAX_DROPPED)
elseif operation == 'groups' then
  result = listed(ARGV[3])
else
  return redis.error_reply('unknown operation ' .. tostring(operation))
end
if changed then
  local version = time[1] .. string.format('%06d', tonumber(time[2]))
  redis.call('SET', base .. ':version', version)
  redis.call('PUBLISH', base .. ':version', version)
end
return result
