#!lua
-- Give a dead letter a fresh set of attempts: failed -> queued. Its events are kept.
-- Replies {"ok"}, {"not_found"}, {"not_dead", status} or {"full", limit, retry_ms, queue}.
local id = ARGV[2] -- string
local tenant = ARGV[3] -- string whose task it must be; "" is anybody's
local request_id = ARGV[4] -- string a repeat of the same request answers ok
local limit_tasks = tonumber(ARGV[5]) -- int
local limit_bytes = tonumber(ARGV[6]) -- int

local key = prefix .. "task:" .. id
local f = redis.call("HMGET", key, "status", "place", "version", "score", "bytes", "redriven")
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
local version, bytes = tonumber(f[3]) + 1, tonumber(f[5])
local limit = full(queue, bytes, limit_tasks, limit_bytes)
if limit then
    return { "full", limit, retry_in_ms(queue), queue }
end
redis.call("HSET", key, "status", "queued", "version", version, "attempt", 0, "worker", "", "redriven", request_id)
redis.call("HDEL", key, "finished", "purge", "deadline", "started", "met", "error")
redis.call("PERSIST", key)
redis.call("PERSIST", key .. ":events")
redis.call("PERSIST", key .. ":logs")
leave_final(member_of(key, queue, owner, id))
redis.call("HDEL", key, "spilled")
leave_letters(queue, owner, id)
enqueue(id, place, f[4])
tally_waiting(place, bytes, 1)
tell_status(id, version, "queued", 0, ',"reason":"redrive"')
settle()
return { "ok" }
