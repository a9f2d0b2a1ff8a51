-- The scripts of the shared secret, and of rate limits: see storage.py.

--- script secret_put
local kept = redis.call('GET', KEYS[1])
if kept and #kept == #ARGV[1] then
    return kept
end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]

--- script rate_take
-- The generic cell rate algorithm, in microseconds: a bucket is stored as the time at which it is full again. If that
-- time is later than a bucket of this size allows, because the clock was set back, the bucket counts as empty.
local each, burst = ARGV[2] * 1000 / ARGV[1], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.min(math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now), now + burst * each)
local wait = full + each - burst * each - now
if wait > 0 then
    return math.ceil(wait / 1000)
end
redis.call('SET', KEYS[1], string.format('%.17g', full + each), 'PX', math.ceil((full + each - now) / 1000))
return 0
