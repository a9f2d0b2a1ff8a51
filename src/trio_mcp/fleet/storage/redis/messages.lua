-- The scripts of the change log, and of the messages between replicas: see messages.py.

--- library prelude
-- `cut` is the number up to which entries were dropped. In a new log, everything before its creation counts as dropped.
local log, things = KEYS[1], KEYS[2]
local found = redis.call('HMGET', log, 'id', 'last', 'cut')
local id, last, cut = found[1], tonumber(found[2] or 0) or 0, tonumber(found[3] or 0) or 0
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Numbers far ahead of the clock, which no replica writes, would never advance.
if not (last <= now + 86400000000 and cut <= last) then
    id = false
end

local function text(number)
    return string.format('%.0f', number)
end

local function begin()
    id, last, cut = ARGV[1], now, now
    redis.call('HSET', log, 'id', id, 'last', text(last), 'cut', text(cut))
    redis.call('DEL', things)
end

local function touch()
    redis.call('PEXPIRE', log, ARGV[2])
    redis.call('PEXPIRE', things, ARGV[2] + 60000)
end

--- script changes_note: prelude
if not id then
    begin()
end
local was = last
last = math.max(last + 1, now)
redis.call('HSET', log, 'last', text(last))
for each = 6, #ARGV do
    redis.call('ZADD', things, last, ARGV[each])
end
local excess = redis.call('ZCARD', things) - tonumber(ARGV[3])
if excess > 0 then
    local first = redis.call('ZRANGE', things, excess - 1, excess - 1, 'WITHSCORES')
    redis.call('ZREMRANGEBYRANK', things, 0, excess - 1)
    redis.call('HSET', log, 'cut', first[2])
end
touch()
redis.call('PUBLISH', ARGV[4], 'c' .. id .. '.' .. text(was) .. ' ' .. id .. '.' .. text(last) .. ' ' .. ARGV[5])
return 1

--- script changes_since: prelude
if not id then
    begin()
end
touch()
local place = id .. '.' .. text(last)
if ARGV[3] == '' then
    return {place, 0}
end
local number = tonumber(ARGV[4])
if ARGV[3] ~= id or number > last or number < cut then
    return {place, 1}
end
return {place, 0, redis.call('ZRANGEBYSCORE', things, '(' .. text(number), '+inf')}

--- script letter_post
-- The list is a set sorted by time: a copy of a message replaces the earlier one. The last piece of a long message is
-- sent together with its name.
local list, channel, message = KEYS[1], ARGV[1], ARGV[2]
local most, listed = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if KEYS[2] then
    redis.call('SETRANGE', KEYS[2], ARGV[5], ARGV[6])
    redis.call('PEXPIRE', KEYS[2], ARGV[7])
end
redis.call('ZADD', list, now, message)
redis.call('ZREMRANGEBYSCORE', list, '-inf', now - listed)
redis.call('ZREMRANGEBYRANK', list, 0, -most - 1)
redis.call('PEXPIRE', list, listed)
redis.call('PUBLISH', channel, message)
return 1

--- script letters_read
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], now - tonumber(ARGV[1]), '+inf')

--- script letter_take
local start, size = tonumber(ARGV[2]), tonumber(ARGV[3])
local whole = redis.call('STRLEN', KEYS[1])
local piece = redis.call('GETRANGE', KEYS[1], start, start + size - 1)
if start + size >= whole then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[2], ARGV[1])
end
return {whole, piece}
