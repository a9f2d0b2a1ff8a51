-- The scripts that store the events of sessions in Redis. Each script is atomic.
--
-- Each session has four keys. A hash has the state of each stream (``s<name>``), the lines (``l<number>:<name>``) and
-- the bytes of all lines. Two sorted sets determine which line is dropped first, in the order of appending: ``older``
-- has the lines that aren't the newest of their streams, and ``newest`` has the streams, by their newest lines.
-- ``finished`` has the finished streams, in the order of finishing. So a script only reads the lines that it adds,
-- drops or returns. A stream with many lines is deleted in several steps.

--- library prelude
-- The state of a stream is an array. UNTIL is the time at which a finished stream is deleted; 0 before it is finished.
local log, older, newest, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, keep = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local HOLDER, REQUEST_ID, LAST, DROPPED, UNTIL, NOTE = 1, 2, 3, 4, 5, 6
local MOST_FORGOTTEN = 1000 -- maximum lines deleted in one step, because Redis does nothing else meanwhile
local MOST_FINISHED = 1000 -- FINISHED_STREAMS_LIMIT of trio_mcp.stores.shared

local function line(number, name)
    return 'l' .. number .. ':' .. name
end

local function load(name)
    local packed = redis.call('HGET', log, 's' .. name)
    return packed and cmsgpack.unpack(packed)
end

local function save(name, stream)
    redis.call('HSET', log, 's' .. name, cmsgpack.pack(stream))
end

-- Deletes the first lines of a stream, at most ``most``, and returns how many. With its last line the stream is
-- deleted; until then it counts as expired.
local function forget(name, stream, most)
    local first, last = stream[DROPPED] + 1, math.min(stream[DROPPED] + most, stream[LAST])
    local size = 0
    for number = first, last do
        size = size + redis.call('HSTRLEN', log, line(number, name))
        redis.call('HDEL', log, line(number, name))
        redis.call('ZREM', older, number .. ':' .. name)
    end
    redis.call('HINCRBY', log, 'size', -size)
    if last < stream[LAST] then
        stream[DROPPED], stream[UNTIL] = last, 1
        save(name, stream)
    else
        redis.call('HDEL', log, 's' .. name)
        redis.call('ZREM', newest, name)
        redis.call('ZREM', finished, name)
    end
    return last + 1 - first
end

local function is_over(stream)
    return stream[UNTIL] > 0 and stream[UNTIL] <= now
end

local function find(name)
    local stream = load(name)
    if stream and is_over(stream) then
        forget(name, stream, MOST_FORGOTTEN)
        return false
    end
    return stream
end

local function begin(holder, request_id)
    local is_first, rest = redis.call('EXISTS', log) == 0, load(name)
    if rest then -- of an earlier stream with this name, although names are unique
        forget(name, rest, rest[LAST])
    end
    local stream = {holder, request_id, 0, 0, 0, ''}
    save(name, stream)
    if is_first then
        redis.call('DEL', older, newest, finished)
    end
    return stream
end

-- The log expires first, so that the sets of an expired log aren't mistaken for those of a new log.
local function touch()
    redis.call('PEXPIRE', log, keep)
    for _, key in ipairs({older, newest, finished}) do
        redis.call('PEXPIRE', key, keep + 60000)
    end
end

local function tell()
    redis.call('PUBLISH', ARGV[3], ARGV[4])
end

--- library writing
local function put(stream, from, to)
    local place = tonumber(redis.call('HGET', log, 'next') or 0)
    local size = tonumber(redis.call('HGET', log, 'size') or 0)
    local number = stream[LAST]
    local before = redis.call('ZSCORE', newest, name)
    for each = from, to do
        if before then
            redis.call('ZADD', older, before, number .. ':' .. name)
        end
        number = number + 1
        redis.call('HSET', log, line(number, name), ARGV[each])
        size = size + #ARGV[each]
        before = place
        place = place + 1
    end
    if number > stream[LAST] then
        redis.call('HSET', log, 'next', place, 'size', size)
        redis.call('ZADD', newest, before, name)
        stream[LAST] = number
    end
end

local function finish(stream)
    stream[UNTIL] = now + keep
    save(name, stream)
    redis.call('ZADD', finished, time[1] * 1000000 + time[2], name)
    local excess = redis.call('ZCARD', finished) - MOST_FINISHED
    local left = MOST_FORGOTTEN
    for rank, each in ipairs(redis.call('ZRANGE', finished, 0, 99)) do
        local other = load(each)
        if left == 0 or (rank > excess and not is_over(other)) then
            break
        end
        left = left - forget(each, other, left)
    end
end

local function drop(number, name)
    local stream = load(name)
    local size = redis.call('HSTRLEN', log, line(number, name))
    redis.call('HDEL', log, line(number, name))
    stream[DROPPED] = tonumber(number)
    save(name, stream)
    return size
end

local function shrink(most)
    local size = tonumber(redis.call('HGET', log, 'size') or 0)
    local before = size
    while size > most do
        local oldest = redis.call('ZPOPMIN', older)[1]
        if oldest then
            size = size - drop(string.match(oldest, '^(%d+):(.*)$'))
        else
            local other = redis.call('ZPOPMIN', newest)[1]
            size = size - drop(load(other)[LAST], other)
        end
    end
    if size < before then
        redis.call('HSET', log, 'size', size)
    end
end

--- script events_open: prelude
local stream = find(name)
if not stream then
    begin(ARGV[3], ARGV[4])
elseif cmsgpack.pack(stream) ~= cmsgpack.pack({ARGV[3], ARGV[4], 0, 0, 0, ''}) then
    return 0
end
touch()
return 1

--- script events_take: prelude
local stream = find(name)
if not stream then
    stream = begin(ARGV[5], '')
elseif stream[UNTIL] == 0 then
    stream[HOLDER] = ARGV[5]
    save(name, stream)
end
touch()
tell()
return stream

--- script events_append: prelude, writing
local holder, most, first = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local is_finish, has_note, note = ARGV[8] == '1', ARGV[9] == '1', ARGV[10]
local last = first + #ARGV - 11
local stream = find(name)
if not stream or stream[HOLDER] ~= holder then
    return 0
end
if stream[UNTIL] > 0 then
    if not is_finish or last ~= stream[LAST] then
        return 0
    end
    touch()
    return 1
end
if first > stream[LAST] + 1 then
    return -1
end
if last >= stream[LAST] then
    put(stream, #ARGV + 1 - (last - stream[LAST]), #ARGV)
    if has_note then
        stream[NOTE] = note
    end
    save(name, stream)
    if is_finish then
        finish(stream)
    end
    shrink(most)
    tell()
end
touch()
return 1

--- script events_finish_dead: prelude, writing
local stream = find(name)
if not stream or stream[HOLDER] ~= ARGV[5] or stream[UNTIL] > 0 then
    return 0
end
put(stream, 7, 7)
stream[HOLDER] = ''
finish(stream)
shrink(tonumber(ARGV[6]))
touch()
tell()
return 1

--- script events_after: prelude
local stream = find(name)
if not stream then
    return false
end
touch()
local lines, number = {}, math.max(tonumber(ARGV[3]), stream[DROPPED])
while number < stream[LAST] do
    local fields = {}
    for each = number + 1, math.min(number + 1000, stream[LAST]) do
        fields[#fields + 1] = line(each, name)
    end
    for _, each in ipairs(redis.call('HMGET', log, unpack(fields))) do
        if not each then
            return redis.error_reply('ERR events of this stream are missing')
        end
        lines[#lines + 1] = each
    end
    number = number + #fields
end
return {stream, lines}
