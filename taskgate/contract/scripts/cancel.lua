#!lua flags=allow-oom
-- Cancel: scheduled | queued | retrying -> canceled; running -> canceling.
-- Replies {"canceled"}, {"canceling"}, {"final", status} (ended otherwise) or {"not_found"}.
local id = ARGV[2] -- string
local tenant = ARGV[3] -- string whose task it must be; "" is anybody's
local retention_ms = tonumber(ARGV[4]) -- int

local key = prefix .. "task:" .. id
local f = redis.call("HMGET", key, "status", "place", "version", "attempt", "bytes", "worker")
local status, place, worker = f[1], f[2], f[6]
if not status or (tenant ~= "" and select(3, place_parts(place)) ~= tenant) then
    return { "not_found" }
end
local version, attempt = tonumber(f[3]) + 1, tonumber(f[4])
if status == "canceled" or status == "canceling" then
    return { status }
end
if status == "running" then
    redis.call("HSET", key, "status", "canceling", "version", version)
    tell_status(id, version, "canceling", attempt, "")
    redis.call("PUBLISH", prefix .. "inbox:" .. worker, "cancel " .. id)
    return { "canceling" }
end
if not WAITING[status] then
    return { "final", status }
end
end_waiting(id, status, place, tonumber(f[5]), "canceled", retention_ms, version, attempt, "")
settle()
return { "canceled" }
