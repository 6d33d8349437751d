#!lua flags=no-writes
-- Read snapshots, never the payload. Replies per id false, or {fields in models.TaskRecord order, rest of the
-- liveness in ms (below 0: none), position, now, barred, history}; barred: which limit keeps a queued task, "key",
-- "tenant" or "type".
local more = ARGV[2] -- string "result", "history" or "": what is read besides
local ids = cmsgpack.unpack(ARGV[3]) -- list   of task ids

local bars = {}

-- What keeps ready tasks of a place from being claimed.
local function bar(place)
    if bars[place] == nil then
        local queue, lane_type, tenant = place_parts(place)
        local lane = queue .. ":" .. lane_type
        bars[place] = redis.call("SISMEMBER", prefix .. "capped:" .. tenant, lane) == 1 and "tenant"
            or redis.call("SISMEMBER", prefix .. "capped-type:" .. type_of(lane_type), lane) == 1 and "type"
    end
    return bars[place]
end

local function read(id)
    local key = prefix .. "task:" .. id
    local f = redis.call("HMGET", key, "spec", "status", "version", "attempt", "epoch", "worker", "created", "started",
        "finished", "due", "deadline", "purge", "progress", "effort", "error", "health", "lease", "place", "lightened",
        "stage")
    if not f[2] then
        return false
    end
    local alive, position, barred = -2, false, false
    if HELD[f[2]] then
        -- The first beat that names an attempt writes its liveness key; until one must have come, the claim stands for it.
        alive = math.max(redis.call("PTTL", key .. ":alive"), tonumber(f[8]) + tonumber(f[17]) - now)
    elseif f[2] == "queued" then
        position = redis.call("ZRANK", prefix .. "ready:" .. f[18], id)
        barred = not position and "key" or bar(f[18]) -- what is not ready waits for a place of its concurrency key
    end
    local result = false
    if f[2] == "succeeded" and not f[19] then
        result = more == "result" and redis.call("HGET", key, "result") or ""
    end
    local history -- {attempts before the last one, how many older ones are gone, when it was redriven}
    if more == "history" then
        local kept = redis.call("HMGET", key, "history_lost", "redriven_at")
        history = { redis.call("LRANGE", key .. ":attempts", 0, -1), kept[1], kept[2] }
    end
    return { f, alive, position, result, now, barred, history }
end

local replies = {}
for i, id in ipairs(ids) do
    replies[i] = read(id)
end
return replies
