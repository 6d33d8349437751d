#!lua flags=no-writes
-- Read snapshots, never the payload. Replies per id false, or {fields in models.TaskRecord order, rest of the
-- liveness in ms (below 0: none), position, now}.
local with_result = ARGV[2] == "1" -- bool
local ids = cmsgpack.unpack(ARGV[3]) -- list   of task ids

local function read(id)
    local key = prefix .. "task:" .. id
    local f = redis.call("HMGET", key, "spec", "status", "version", "attempt", "epoch", "worker", "created", "started",
        "finished", "due", "deadline", "purge", "progress", "effort", "error", "health", "lease", "place", "lightened",
        "stage")
    if not f[2] then
        return false
    end
    local alive, position = -2, false
    if HELD[f[2]] then
        -- The first beat that names an attempt writes its liveness key; until one must have come, the claim stands for it.
        alive = math.max(redis.call("PTTL", key .. ":alive"), tonumber(f[8]) + tonumber(f[17]) - now)
    elseif f[2] == "queued" then
        position = redis.call("ZRANK", prefix .. "ready:" .. f[18], id)
    end
    local result = false
    if f[2] == "succeeded" and not f[19] then
        result = with_result and redis.call("HGET", key, "result") or ""
    end
    return { f, alive, position, result, now }
end

local replies = {}
for i, id in ipairs(ids) do
    replies[i] = read(id)
end
return replies
