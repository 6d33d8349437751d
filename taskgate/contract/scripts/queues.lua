#!lua flags=no-writes
-- Look at queues: their dead letters, and what stands ready there by type and tenant. Bounded: tenants beyond are counted.
-- Replies {now, {queue...}}, each {dead, oldest, {lane type, tenants beyond}..., {lane type, tenant, ready}...}; oldest:
-- creation of the oldest task that is next of its type and tenant, 0 for none.
local queues = cmsgpack.unpack(ARGV[2]) -- list   of names
local sought = cmsgpack.unpack(ARGV[3]) -- list   of tenants to look for, the most important ones first
local limit = tonumber(ARGV[4]) -- int    about so many tenants are looked at, over all lanes; 0: those sought, in each

local LANES_A_QUEUE = 64
local LANES_LEFT = limit > 0 and 8 or LANES_A_QUEUE -- looked at of a tenant's at its limit
local CAPPED_A_CALL = 100

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

local function look(queue)
    local ready, first = {}, nil

    local function look_at(lane_type, tenant)
        local key = prefix .. "ready:" .. queue .. ":" .. lane_type .. ":" .. tenant
        local head = redis.call("ZRANGE", key, 0, 0)[1]
        if head then
            first = first and first < head and first or head -- ids are in the order of time
            ready[#ready + 1] = { lane_type, tenant, redis.call("ZCARD", key) }
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
    local oldest = first and redis.call("HGET", prefix .. "task:" .. first, "created") or 0
    return { redis.call("ZCARD", prefix .. "dead:" .. queue), tonumber(oldest), lanes, ready }
end

local replies = {}
for i, queue in ipairs(queues) do
    replies[i] = look(queue)
end
return { now, replies }
