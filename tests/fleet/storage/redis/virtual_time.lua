-- Runs a script in a place of its own, with a time that the test sets: see sequences.py.
--
-- The last two arguments are the place and the time in milliseconds. All keys of a script contain the place. Redis has
-- no expiry times here: `TTL` contains them, by the keys without the place, and keys whose time has come are deleted
-- before the script runs. `USED` contains the names of all keys that scripts have used.
local real, NOW, PLACE = redis, tonumber(table.remove(ARGV)), table.remove(ARGV)
local TTL, USED = PLACE .. 'ttl', PLACE .. 'used'
local touched = {}

local function bare(key)
    local first, last = string.find(key, PLACE, 1, true)
    return string.sub(key, 1, first - 1) .. '@' .. string.sub(key, last + 1)
end

local function whole(name)
    local at = string.find(name, '@', 1, true)
    return string.sub(name, 1, at - 1) .. PLACE .. string.sub(name, at + 1)
end

local function ends_at(key, time)
    real.call('HSET', TTL, bare(key), time)
end

local function forget_end(key)
    real.call('HDEL', TTL, bare(key))
end

local function is_there(key)
    return real.call('EXISTS', key) == 1
end

local special = {}

function special.TIME()
    return {string.format('%.0f', math.floor(NOW / 1000)), string.format('%.0f', NOW % 1000 * 1000)}
end

function special.PUBLISH()
    return 0
end

function special.PEXPIRE(key, length)
    if is_there(key) then
        ends_at(key, NOW + length)
        return 1
    end
    return 0
end

function special.PEXPIREAT(key, time)
    return special.PEXPIRE(key, time - NOW)
end

function special.PERSIST(key)
    return real.call('HDEL', TTL, bare(key))
end

function special.PTTL(key)
    local time = is_there(key) and real.call('HGET', TTL, bare(key))
    return time and time - NOW or is_there(key) and -1 or -2
end

function special.SET(key, value, option, length)
    assert(option == nil or option == 'PX')
    real.call('SET', key, value)
    forget_end(key)
    if option then
        ends_at(key, NOW + length)
    end
    return {ok = 'OK'}
end

local function call(name, key, ...)
    if type(key) == 'string' and string.find(key, PLACE, 1, true) then
        touched[key] = true
    end
    for _, other in ipairs(name == 'DEL' and {...} or {}) do
        forget_end(other)
    end
    if special[name] then
        return special[name](key, ...)
    end
    local result = real.call(name, key, ...)
    if not is_there(key) then
        forget_end(key)
    end
    return result
end

local ends = real.call('HGETALL', TTL)
for each = 1, #ends, 2 do
    if tonumber(ends[each + 1]) < NOW then
        real.call('DEL', whole(ends[each]))
        real.call('HDEL', TTL, ends[each])
    end
end

local function main(redis)
    --[[SCRIPT]]
end

local result = main({call = call, error_reply = real.error_reply})
for key in pairs(touched) do
    real.call('SADD', USED, bare(key))
end
return result
