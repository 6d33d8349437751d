#!lua flags=no-writes
-- Look at queues: their dead letters, and what stands ready there by type and tenant. Bounded: tenants beyond are counted.
-- Replies {now, {queue...}}, each {dead, oldest, {lane type, tenants beyond}..., {lane type, tenant, ready}...}; oldest:
-- creation of the oldest task that is next of its type and tenant, 0 for none.
local queues = cmsgpack.unpack(ARGV[2]) -- list   of names
local sought = cmsgpack.unpack(ARGV[3]) -- list   of tenants that are looked for everywhere
local limit = tonumber(ARGV[4]) -- int    tenants to look at in all lanes together, beside those sought

local LANES_A_QUEUE = 64
local CAPPED_A_CALL = 100

if limit > 0 then -- those at their limit stand in no lane, where they would be found
    for _, tenant in ipairs(redis.call("SRANDMEMBER", prefix .. "capped", CAPPED_A_CALL)) do
        sought[#sought + 1] = tenant
    end
end

-- The lanes that tenants have left: lane types and tenants by queue.
local capped = {}
for _, tenant in ipairs(sought) do
    for _, lane in ipairs(redis.call("SRANDMEMBER", prefix .. "capped:" .. tenant, LANES_A_QUEUE)) do
        local queue, lane_type = string.match(lane, "^([^:]+):(.+)$")
        capped[queue] = capped[queue] or {}
        table.insert(capped[queue], { lane_type, tenant })
    end
end

local function look(queue)
    local looked, ready, first = {}, {}, nil

    local function look_at(lane_type, tenant)
        local place = queue .. ":" .. lane_type .. ":" .. tenant
        local key = prefix .. "ready:" .. place
        local count = not looked[place] and redis.call("ZCARD", key) or 0
        looked[place] = true
        if count > 0 then
            local head = redis.call("ZRANGE", key, 0, 0)[1]
            first = first and first < head and first or head -- ids are in the order of time
            ready[#ready + 1] = { lane_type, tenant, count }
        end
        return count > 0 and 1 or 0
    end

    local lanes = redis.call("ZRANGE", prefix .. "lanes:" .. queue, 0, LANES_A_QUEUE - 1)
    local each = math.ceil(limit / #queues / math.max(1, #lanes))
    for i, lane_type in ipairs(lanes) do
        local key = prefix .. "lane:" .. queue .. ":" .. lane_type
        local beyond = redis.call("ZCARD", key)
        for _, tenant in ipairs(sought) do
            beyond = beyond - look_at(lane_type, tenant)
        end
        for _, tenant in ipairs(each > 0 and redis.call("ZRANGE", key, 0, each - 1) or {}) do
            beyond = beyond - look_at(lane_type, tenant)
        end
        lanes[i] = { lane_type, math.max(0, beyond) }
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
