-- The scripts that store legacy sessions in Redis: see sessions.py.
--
-- If a script of this folder needs memory, its first command that writes is one that a full Redis refuses. So a refused
-- script has changed nothing. After that command, Redis refuses no other command of the script.

--- library prelude
-- The keys of the callers' sets, and of evicted sessions, are made from `ends` and `session`. All of them have the same
-- hash tag, and so are in one slot.
local call, session, ends, callers, id = redis.call, KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local UNUSED = 2 ^ 43
local function of(caller)
    return ends .. ':' .. caller
end
local function count(caller)
    local held = call('ZCARD', of(caller))
    if held == 0 then
        call('ZREM', callers, caller)
    else
        call('ZADD', callers, held, caller)
    end
end
-- True if the session was never used, or if a use would move its end by a second or a hundredth of ``idle``. Otherwise
-- the end isn't moved, because moving it is most of the cost of a use.
local function is_stale(caller, idle)
    local left = tonumber(call('ZSCORE', ends, caller .. id) or 0) - now
    return left > idle or left < idle - math.min(1000, idle / 100)
end
local function last(caller, idle, score)
    call('PEXPIRE', session, idle)
    call('ZADD', ends, score, caller .. id)
    if call('ZADD', of(caller), score, id) == 1 then
        count(caller)
    end
    for _, set in ipairs({ends, of(caller), callers}) do
        if call('PTTL', set) < idle + 3600000 then
            call('PEXPIRE', set, idle + 3600000)
        end
    end
end
local function leave(caller, name)
    call('ZREM', ends, caller .. name)
    call('ZREM', of(caller), name)
    count(caller)
end

--- script session_open: prelude
local CALLER = 32 -- characters of a caller's name in keys and in `ends`, where a session id follows the name
if call('EXISTS', session) == 1 then
    return {'there'}
end
local idle, caller, most, bus = tonumber(ARGV[2]), ARGV[5], tonumber(ARGV[6]), ARGV[7]
call('HSET', session, 'facts', ARGV[3], 'mark', ARGV[4], 'caller', caller)
local function below(score)
    return '(' .. string.format('%.0f', score)
end
local function split(member)
    return string.sub(member, 1, CALLER), string.sub(member, CALLER + 1)
end
local function sweep(least, most)
    for _, member in ipairs(call('ZRANGEBYSCORE', ends, least, most, 'LIMIT', 0, 100)) do
        leave(split(member))
    end
end
sweep('-inf', below(now - UNUSED))
sweep(0, below(now))

local function alive(set)
    return call('ZCOUNT', set, now - UNUSED, '(0') + call('ZCOUNT', set, now, '+inf')
end
local function unused(set)
    return call('ZRANGEBYSCORE', set, now - UNUSED, '(0', 'LIMIT', 0, 1)[1]
end
local function first(set)
    return unused(set) or call('ZRANGEBYSCORE', set, now, '+inf', 'LIMIT', 0, 1)[1]
end
local function biggest()
    for _ = 1, 100 do
        local top = call('ZREVRANGE', callers, 0, 0, 'WITHSCORES')
        local held = top[1] and alive(of(top[1])) or 0
        if held == tonumber(top[2] or 0) then
            return top[1], held
        end
        call('ZREMRANGEBYSCORE', of(top[1]), '-inf', below(now - UNUSED))
        call('ZREMRANGEBYSCORE', of(top[1]), 0, below(now))
        count(top[1])
    end
    return nil, 0
end
local function place()
    if alive(of(caller)) > 0 then
        return caller, unused(of(caller))
    end
    local top, held = biggest()
    if held > 1 then
        return top, first(of(top))
    end
    local member = unused(ends)
    if member then
        return split(member)
    end
end

local total, ended = alive(ends), nil
if alive(of(caller)) + 1 > most - total then
    local who, name
    if total <= most then
        who, name = place()
    end
    if not name then
        call('DEL', session)
        return {'full'}
    end
    leave(who, name)
    call('DEL', string.sub(session, 1, #session - #id) .. name)
    call('PUBLISH', bus, 's' .. name)
    ended = name
end
last(caller, idle, now + idle - UNUSED)
return {'open', ended}

--- script session_read: prelude
local idle, found = tonumber(ARGV[2]), call('HMGET', session, 'facts', 'mark', 'caller')
if not (found[2] and found[3]) then
    return false
end
if is_stale(found[3], idle) then
    last(found[3], idle, now + idle)
end
return {found[1], found[2]}

--- script session_change: prelude
local idle, found = tonumber(ARGV[2]), call('HMGET', session, 'mark', 'caller')
if found[1] ~= ARGV[5] or not found[2] then
    return 0
end
call('HSET', session, 'facts', ARGV[3], 'mark', ARGV[4])
if is_stale(found[2], idle) then
    last(found[2], idle, now + idle)
end
call('PUBLISH', ARGV[6], 's' .. id)
return 1

--- script session_end: prelude
local caller = call('HGET', session, 'caller')
if not caller and call('EXISTS', session) == 0 then
    return 0
end
call('DEL', session)
if caller then
    leave(caller, id)
end
call('PUBLISH', ARGV[2], 's' .. id)
return 1
