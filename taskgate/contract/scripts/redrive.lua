#!lua
-- Give a dead letter a fresh set of attempts: failed -> queued. Its events are kept.
-- Replies {"ok"}, {"not_found"}, {"not_dead", status}, {"full", limit, retry_ms} or, where another
-- live task has its unique key, {"unique_conflict", task_id, status}.
local id = ARGV[2] -- string
local tenant = ARGV[3] -- string whose task it must be; "" is anybody's
local request_id = ARGV[4] -- string a repeat of the same request answers ok
local queue_limits = cmsgpack.unpack(ARGV[5]) -- list   of {queue, models.QueueLimits...}: that of its queue
local tenant_limits = cmsgpack.unpack(ARGV[6]) -- list   of {tenant, models.TenantLimits...}: of its tenant, if any

local key = prefix .. "task:" .. id
local f = redis.call("HMGET", key, "status", "place", "version", "score", "bytes", "redriven", "unique")
local status, place = f[1], f[2]
if not status then
    return { "not_found" }
end
local queue, _, owner = place_parts(place)
if tenant ~= "" and owner ~= tenant then
    return { "not_found" }
end
if f[6] == request_id then
    return { "ok" }
end
if status ~= "failed" then
    return { "not_dead", status }
end
if f[7] then
    local holder, holder_status = holder_of(owner, f[7])
    if holder then
        return { "unique_conflict", holder, holder_status }
    end
end
local version, bytes = tonumber(f[3]) + 1, tonumber(f[5])
local queue_bound = bound_of("queue", queue_limits[1])
local tenant_bound = tenant_limits[1] and bound_of("tenant", tenant_limits[1])
local refused = refusal(queue_bound, tenant_bound, nil, bytes)
if refused then
    close_bound(queue_bound)
    close_bound(tenant_bound)
    return refused
end
admit(queue_bound, tenant_bound, nil)
close_bound(queue_bound)
close_bound(tenant_bound)
redis.call("HSET", key, "status", "queued", "version", version, "attempt", 0, "worker", "", "redriven", request_id)
redis.call("HDEL", key, "finished", "purge", "deadline", "started", "met", "error")
redis.call("PERSIST", key)
redis.call("PERSIST", key .. ":events")
redis.call("PERSIST", key .. ":logs")
leave_final(member_of(key, queue, owner, id))
redis.call("HDEL", key, "spilled")
leave_letters(queue, owner, id)
if f[7] then
    take_unique(id, owner, f[7])
end
enqueue(id, place, f[4])
tally_waiting(place, bytes, 1)
tell_status(id, version, "queued", 0, ',"reason":"redrive"')
settle()
return { "ok" }
