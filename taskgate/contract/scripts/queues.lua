#!lua flags=no-writes
-- Look at queues: their dead letters, and what stands ready there by type and tenant. Bounded: tenants beyond are counted.
-- Replies {now, {queue...}}, each {dead, oldest, sure, {lane type, tenants beyond}..., {lane type, tenant, ready}...};
-- oldest: creation of the oldest ready task that was found, 0 for none; sure, 1 or 0: no queued one is older.
local queues = cmsgpack.unpack(ARGV[2]) -- list   of names
local sought = cmsgpack.unpack(ARGV[3]) -- list   of tenants to look for, the most important ones first
local limit = tonumber(ARGV[4]) -- int    about so many tenants are looked at, over all lanes; 0: those sought, in each

local LANES_A_QUEUE = 64
local LANES_LEFT = limit > 0 and 8 or LANES_A_QUEUE -- looked at of a tenant's at its limit
local CAPPED_A_CALL = 100
local RECORDS_A_QUEUE = limit > 0 and 100 or 0 -- looked at in search of the oldest, behind those that are next

local at_limit = sought
if limit > 0 then
    at_limit = redis.call("SRANDMEMBER", prefix .. "capped", CAPPED_A_CALL)
end

-- Tenants at their limit stand in no lane, where they would be found: the lanes that they have left, by queue.
local capped = {}
for _, tenant in ipairs(at_limit) do
    for _, lane in ipairs(redis.call("SRANDMEMBER", prefix .. "capped:" .. tenant, LANES_LEFT)) do
        local queue, lane_type = string.match(lane, "^([^:]+):(.+)$")
        capped[queue] = capped[queue] or {}
        table.insert(capped[queue], { lane_type, tenant })
    end
end

-- Of a lane's tenants up to `most`: those sought, then whose turn is next.
local function some_of(lane_key, most)
    local some, asked = {}, {}
    for i = 1, math.min(#sought, limit > 0 and 4 * most or #sought) do
        asked[i] = sought[i]
    end
    local scores = #asked > 0 and redis.call("ZMSCORE", lane_key, unpack(asked)) or {}
    for i, tenant in ipairs(asked) do
        if scores[i] and #some < most then
            some[#some + 1] = tenant
            asked[tenant] = true
        end
    end
    for _, tenant in ipairs(limit > 0 and redis.call("ZRANGE", lane_key, 0, most - 1) or {}) do
        if #some < most and not asked[tenant] then
            some[#some + 1] = tenant
        end
    end
    return some
end

local function created(id)
    return tonumber(redis.call("HGET", prefix .. "task:" .. id, "created")) or math.huge
end

-- Creation of the oldest in some orders, given that of the oldest of their heads, and whether none there is older. A score
-- is creation less the priority's bonus, so that nothing is older than its score: what is to be looked at lies below.
local function oldest_of(keys, oldest)
    local left = RECORDS_A_QUEUE
    for _, key in ipairs(keys) do
        local rest = redis.call("ZRANGEBYSCORE", key, "-inf", "(" .. oldest, "LIMIT", 1, left + 1)
        local count = math.min(left, #rest)
        for i = 1, count do
            oldest = math.min(oldest, created(rest[i]))
        end
        if rest[count + 1] and tonumber(redis.call("ZSCORE", key, rest[count + 1])) < oldest then
            return oldest, false
        end
        left = left - count
    end
    return oldest, true
end

local function queued(queue)
    local f = redis.call("HMGET", usage_key, "waiting:queue:" .. queue, "scheduled:queue:" .. queue,
        "retrying:queue:" .. queue)
    return (tonumber(f[1]) or 0) - (tonumber(f[2]) or 0) - (tonumber(f[3]) or 0)
end

local function look(queue)
    local ready, several, oldest, counted = {}, {}, math.huge, 0

    local function look_at(lane_type, tenant)
        local key = prefix .. "ready:" .. queue .. ":" .. lane_type .. ":" .. tenant
        local head, score = unpack(redis.call("ZRANGE", key, 0, 0, "WITHSCORES"))
        if head then
            local count = redis.call("ZCARD", key)
            if tonumber(score) < oldest then
                oldest = math.min(oldest, created(head))
            end
            if count > 1 then
                several[#several + 1] = key
            end
            counted = counted + count
            ready[#ready + 1] = { lane_type, tenant, count }
        end
    end

    local lanes = redis.call("ZRANGE", prefix .. "lanes:" .. queue, 0, LANES_A_QUEUE - 1)
    local most = limit > 0 and math.ceil(limit / #queues / math.max(1, #lanes)) or #sought
    for i, lane_type in ipairs(lanes) do
        local key = prefix .. "lane:" .. queue .. ":" .. lane_type
        local some = some_of(key, most)
        for _, tenant in ipairs(some) do
            look_at(lane_type, tenant)
        end
        lanes[i] = { lane_type, redis.call("ZCARD", key) - #some }
    end
    for _, entry in ipairs(capped[queue] or {}) do
        look_at(entry[1], entry[2])
    end
    local sure
    oldest, sure = oldest_of(several, oldest)
    sure = sure and counted == queued(queue) -- else some wait for a key, or of a tenant that was not looked at
    return { redis.call("ZCARD", prefix .. "dead:" .. queue), ready[1] and oldest or 0, sure and 1 or 0, lanes, ready }
end

local replies = {}
for i, queue in ipairs(queues) do
    replies[i] = look(queue)
end
return { now, replies }
