-- Prepended to every script: the arguments all share, and the moves several transitions are made of.
-- Keys that a script cannot know beforehand are built from the prefix; its hash tag keeps them in one slot.
local prefix = KEYS[1] -- string  tg:{partition}:
local now = tonumber(ARGV[1]) -- int     Unix ms; "" is the Redis clock, which is what production passes
if not now then
    local t = redis.call("TIME")
    now = t[1] * 1000 + math.floor(t[2] / 1000)
end

local TASK_BYTES = 2048 -- what admission counts for a task besides its payload
local IDEMPOTENCY_MS = 86400000
local HEAVY_BYTES = 1024 -- of payload and result: what is dropped before whole tasks are
local SPILLED = "!" -- field `spilled` of a dead letter that never was in its queue; ends its entry in `final`
local ALONE = "!alone" -- ends the names of lanes whose tasks each run in a child of their own; no type can have it
local WAITING = { scheduled = true, queued = true, retrying = true }
local HELD = { running = true, canceling = true }

local usage_key = prefix .. "usage"
local tallies = {}

local function tally(field, by)
    tallies[field] = (tallies[field] or 0) + by
end

-- Write what was tallied. A script that changes counts ends with it.
local function settle()
    for field, by in pairs(tallies) do
        if by ~= 0 and redis.call("HINCRBY", usage_key, field, by) == 0 then
            redis.call("HDEL", usage_key, field) -- tenants come and go; their counters must not stay
        end
    end
    tallies = {}
end

-- The type of a lane's tasks.
local function type_of(lane_type)
    return (string.gsub(lane_type, ALONE .. "$", ""))
end

local places = {}

-- Queue, type and tenant, then the names of its counters: most tasks of a call are of one place.
local function parts_of(place)
    local parts = places[place]
    if not parts then
        parts = { string.match(place, "^([^:]+):([^:]+):([^:]+)$") }
        local queue, tenant = parts[1], parts[3]
        parts[4], parts[5] = "waiting:queue:" .. queue, "bytes:queue:" .. queue
        parts[6], parts[7] = "waiting:tenant:" .. tenant, "bytes:tenant:" .. tenant
        parts[8], parts[10] = "running:queue:" .. queue, "running:tenant:" .. tenant
        parts[9] = "tenant:" .. tenant
        parts[11] = "running:type:" .. type_of(parts[2])
        places[place] = parts
    end
    return parts
end

local function place_parts(place)
    return unpack(parts_of(place), 1, 3)
end

-- Count a task in (by = 1) or out (by = -1) of what waits.
local function tally_waiting(place, bytes, by)
    local parts = parts_of(place)
    tally(parts[4], by)
    tally(parts[5], by * bytes)
    tally(parts[6], by)
    tally(parts[7], by * bytes)
end

-- Count a waiting task in (by = 1) or out (by = -1) of those that are not queued yet: `queued` is what else waits.
local function tally_delayed(place, status, by)
    if status == "scheduled" or status == "retrying" then
        local queue, _, tenant = place_parts(place)
        tally(status .. ":queue:" .. queue, by)
        tally(status .. ":tenant:" .. tenant, by)
    end
end

local function tally_running(place, by)
    local parts = parts_of(place)
    tally(parts[8], by)
    tally(parts[10], by)
    tally(parts[11], by)
end
