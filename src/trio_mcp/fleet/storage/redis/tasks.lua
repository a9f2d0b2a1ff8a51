-- The scripts that store tasks in Redis. Each script runs completely, or is refused before its first write.
--
-- ``KEYS[1]`` is the prefix of the keys of all tasks, and ``ARGV[1]`` the channel on which changes are published.
-- Scripts find the records to change, so the keys of records aren't in ``KEYS``; the tag in the prefix keeps all in one
-- slot.
--
-- - ``r:<id>`` is the hash of a record: ``s`` the key of the scope, ``p`` the position, ``h`` the holder, ``e`` and
--   ``v`` the epoch and the version, ``m`` the mark, ``f`` and ``b`` the form and the body. Times in a body are relative
--   to ``t``; without ``t`` they are since the epoch. ``q`` is the queue of a task that can be claimed at some time.
-- - ``q:<queue>`` has such tasks of one form and one name, by the ends of their leases.
-- - ``s:<scope>`` has the records of a scope, by position.
-- - ``expiry`` has all records, by the time until which they are kept, or ``+inf``.
-- - ``v:<id>`` is the time until which no record with this id can be created.
--
-- If no replica deletes a key, Redis does so one hour after the key is no longer needed. Therefore sorted sets may name
-- deleted records; scripts remove such names when they find them.
--
-- Numbers in Lua are exact up to 2^53. Scripts don't compare text with ``<``, which would depend on the server's
-- locale.

--- library prelude
local base, bus, call = KEYS[1], ARGV[1], redis.call
local HOUR, MOST_BYTES = 3600000, 4 * 1024 * 1024 -- a script returns no further records after this many bytes
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local FREE = now - 2^50 -- a score before the end of any lease, so that tasks without a holder come first, in order
local expiry = base .. 'expiry'
local function record(id) return base .. 'r:' .. id end
local function queue(name) return base .. 'q:' .. name end
local function scope(name) return base .. 's:' .. name end
local function void(id) return base .. 'v:' .. id end

local function last(key, kept)
    if kept == '+inf' then
        call('PERSIST', key)
    else
        call('PEXPIREAT', key, math.max(kept, now) + HOUR)
    end
end

local function add(key, score, id, kept)
    call('ZADD', key, score, id)
    local left = call('ZCARD', key) == 1 and 0 or call('PTTL', key) -- -1 if another record keeps the key for ever
    if kept == '+inf' or (left >= 0 and now + left < math.max(kept, now) + HOUR) then
        last(key, kept)
    end
end

local past = string.format('(%.0f', now)
local function oldest(key, most)
    return call('ZRANGEBYSCORE', key, '-inf', past, 'WITHSCORES', 'LIMIT', 0, most)
end

local function tell(id)
    call('PUBLISH', bus, 't' .. id)
end

local HOLDER, EPOCH, VERSION, MARK, BODY, QUEUE, LEASED_UNTIL, ID = 3, 4, 5, 6, 8, 10, 11, 12
local function row(id)
    local fields = call('HMGET', record(id), 's', 'p', 'h', 'e', 'v', 'm', 'f', 'b', 't', 'q')
    fields[LEASED_UNTIL] = fields[QUEUE] and call('ZSCORE', queue(fields[QUEUE]), id) or '0'
    fields[ID] = id
    return fields[1] and fields
end

local function drop(id)
    local of = call('HMGET', record(id), 's', 'q')
    call('ZREM', expiry, id)
    if not of[1] then
        return 0
    end
    call('ZREM', scope(of[1]), id)
    if of[2] then
        call('ZREM', queue(of[2]), id)
    end
    call('UNLINK', record(id))
    tell(id)
    return 1
end

--- script task_create: prelude
local id, most, most_of_scope, kept, lease = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local waits_in, is_held, holder, of = ARGV[7], ARGV[8] == '1', ARGV[9], ARGV[15]
local count, place = 0, now * 1000
for each = 15, #ARGV do
    local key = scope(ARGV[each])
    local newest = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    place = math.max(place, newest[2] and newest[2] + 1 or 0)
    count = count + call('ZCARD', key)
end
if count >= most_of_scope then
    for each = 15, #ARGV do
        local key = scope(ARGV[each])
        for _, old in ipairs(call('ZRANGE', key, 0, 99)) do
            if call('EXISTS', record(old)) == 0 then
                count = count - call('ZREM', key, old)
            end
        end
    end
end
if call('ZCARD', expiry) >= most or count >= most_of_scope then
    return 'full'
end
if tonumber(call('GET', void(id)) or 0) > now then
    return 'void'
end
if call('EXISTS', record(id)) == 1 then
    return 'taken'
end
kept = kept == '' and '+inf' or now + kept
call('HSET', record(id), 's', of, 'p', place, 'e', ARGV[10], 'v', ARGV[11], 'm', ARGV[12], 'f', ARGV[13],
    'b', ARGV[14], 't', now)
if waits_in ~= '' then
    call('HSET', record(id), 'q', waits_in)
    add(queue(waits_in), is_held and now + lease or FREE, id, kept)
    if is_held then
        call('HSET', record(id), 'h', holder)
    end
end
last(record(id), kept)
add(expiry, kept, id, kept)
add(scope(of), place, id, kept)
tell(id)
return {now, place}

--- script task_void: prelude
local id, keep = ARGV[2], tonumber(ARGV[3])
local was_there = drop(id)
if was_there == 0 then
    call('SET', void(id), now + keep, 'PX', keep + HOUR)
end
return was_there

--- script task_read: prelude
return {now, row(ARGV[2])}

--- script task_marks: prelude
local marks = {}
for each = 2, #ARGV do
    marks[each - 1] = call('HGET', record(ARGV[each]), 'm')
end
return marks

--- script task_change: prelude
local id, was, is_by, by, gives_up = ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5], ARGV[6] == '1'
local kept, waits_in, of = ARGV[7], ARGV[8], ARGV[9]
local old = call('HMGET', record(id), 'm', 'h', 's', 'p', 'q')
if old[1] ~= was or (is_by and old[2] ~= by) then
    return 0
end
call('HSET', record(id), 's', of, 'v', ARGV[10], 'm', ARGV[11], 'f', ARGV[12], 'b', ARGV[13])
call('HDEL', record(id), 't')
last(record(id), kept)
add(expiry, kept, id, kept)
if old[3] ~= of then
    call('ZREM', scope(old[3]), id)
end
add(scope(of), old[4], id, kept)
local lease = old[5] and call('ZSCORE', queue(old[5]), id) or FREE
if old[5] and old[5] ~= waits_in then
    call('ZREM', queue(old[5]), id)
end
if gives_up or waits_in == '' then
    call('HDEL', record(id), 'h')
end
if waits_in == '' then
    call('HDEL', record(id), 'q')
else
    call('HSET', record(id), 'q', waits_in)
    add(queue(waits_in), gives_up and FREE or lease, id, kept)
end
tell(id)
return 1

--- script task_page: prelude
local place, after, most = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local function is_before(one, other)
    for each = 1, math.min(#one, #other) do
        local a, b = one:byte(each), other:byte(each)
        if a ~= b then
            return a < b
        end
    end
    return #one < #other
end

local found = {}
for each = 5, #ARGV do
    local key = scope(ARGV[each])
    local ties = call('ZCOUNT', key, place, place)
    local some = call('ZRANGEBYSCORE', key, place, '+inf', 'WITHSCORES', 'LIMIT', 0, ties + most)
    for i = 1, #some, 2 do
        local at = tonumber(some[i + 1])
        if at > place or is_before(after, some[i]) then
            found[#found + 1] = {at, some[i], key}
        end
    end
end
table.sort(found, function(one, other)
    if one[1] ~= other[1] then
        return one[1] < other[1]
    end
    return is_before(one[2], other[2])
end)

local rows, bytes = {}, 0
for each = 1, math.min(most, #found) do
    local at, id, key = unpack(found[each])
    local fields, kept = row(id), tonumber(call('ZSCORE', expiry, id) or 0)
    if not fields then
        call('ZREM', key, id)
    elseif kept >= now then
        rows[#rows + 1] = fields
        bytes = bytes + #fields[BODY]
    end
    if each == most or bytes > MOST_BYTES then
        return {rows, at, id}
    end
end
return {rows}

--- script task_claim: prelude
local holder, lease, most = ARGV[2], ARGV[3], tonumber(ARGV[4])
local heads = {} -- for each queue, the task that has waited longest
for each = 5, #ARGV do
    local first = oldest(queue(ARGV[each]), 1)
    if first[1] then
        heads[#heads + 1] = {id = first[1], score = tonumber(first[2]), key = queue(ARGV[each])}
    end
end

local rows, bytes = {}, 0
for each = 1, most do
    local at = 1
    for i = 2, #heads do
        at = heads[i].score < heads[at].score and i or at
    end
    local head = heads[at]
    if not head then
        return {rows, 0}
    end
    local fields = row(head.id)
    if fields then
        fields[HOLDER], fields[MARK], fields[LEASED_UNTIL] = holder, holder, now + lease
        fields[EPOCH] = string.format('%.0f', fields[EPOCH] + 1)
        fields[VERSION] = string.format('%.0f', fields[VERSION] + 1)
        call('HSET', record(head.id), 'h', holder, 'm', holder, 'e', fields[EPOCH], 'v', fields[VERSION])
        call('ZADD', head.key, now + lease, head.id)
        tell(head.id)
        rows[#rows + 1] = fields
        bytes = bytes + #fields[BODY]
    else
        call('ZREM', head.key, head.id)
    end
    if bytes > MOST_BYTES then
        break
    end
    local following = oldest(head.key, 1)
    if following[1] then
        head.id, head.score = following[1], tonumber(following[2])
    else
        table.remove(heads, at)
    end
end
return {rows, 1}

--- script task_renew: prelude
local lease, lost = ARGV[2], {}
for each = 3, #ARGV, 2 do
    local id = ARGV[each]
    local kept = call('HMGET', record(id), 'h', 'q')
    if kept[1] == ARGV[each + 1] then
        call('ZADD', queue(kept[2]), now + lease, id)
    else
        lost[#lost + 1] = id
    end
end
return lost

--- script task_expire: prelude
local old, deleted = oldest(expiry, ARGV[2]), 0
for each = 1, #old, 2 do
    deleted = deleted + drop(old[each])
end
return {#old / 2, deleted}
