#!lua flags=allow-oom
-- Fail what waits in a lane that no supervisor serves: queued -> failed; no attempt is counted.
-- Replies {"no_worker"}, {"served"} or {"ok", failed}; as many as `limit` means that more may wait.
local worker = ARGV[2] -- string who watched the lane; it must live itself
local queue = ARGV[3] -- string
local task_type = ARGV[4] -- string
local seconds = ARGV[5] -- string for how long nobody served it, as the message says it
local limit = tonumber(ARGV[6]) -- int    tasks a call
local dead_retention_ms = tonumber(ARGV[7]) -- int

if redis.call("HEXISTS", prefix .. "beats", worker) == 0 then
    return { "no_worker" }
end
if served_lanes()[queue .. ":" .. type_of(task_type)] then
    return { "served" }
end

local error = cjson.encode({
    kind = "unknown_type",
    message = "no live supervisor has served task type " .. type_of(task_type) .. " in queue " .. queue .. " for " .. seconds
        .. " s",
})

local function fail(id, place)
    local key = prefix .. "task:" .. id
    local f = redis.call("HMGET", key, "version", "attempt", "bytes")
    end_waiting(id, "queued", place, tonumber(f[3]), "failed", dead_retention_ms, tonumber(f[1]) + 1, tonumber(f[2]),
        ',"error":' .. error, { "error", error })
end

local failed = 0
for _, tenant in ipairs(redis.call("ZRANGE", prefix .. "lane:" .. queue .. ":" .. task_type, 0, limit - 1)) do
    local place = queue .. ":" .. task_type .. ":" .. tenant
    local ids = { true }
    while #ids > 0 and failed < limit do -- those behind them, of the same concurrency key, are ready then
        ids = redis.call("ZRANGE", prefix .. "ready:" .. place, 0, limit - failed - 1)
        for _, id in ipairs(ids) do
            fail(id, place)
            failed = failed + 1
        end
    end
end
settle()
return { "ok", failed }
