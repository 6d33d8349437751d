#!lua flags=allow-oom
-- Delete a finished task: succeeded | failed | canceled | expired -> nothing. Its idempotency key is free again.
-- Replies {"ok"}, {"not_found"} or {"not_finished", status}.
local id = ARGV[2] -- string
local tenant = ARGV[3] -- string whose task it must be; "" is anybody's

local key = prefix .. "task:" .. id
local f = redis.call("HMGET", key, "status", "place", "idem")
local status = f[1]
if not status then
    return { "not_found" }
end
local queue, _, owner = place_parts(f[2])
if tenant ~= "" and owner ~= tenant then
    return { "not_found" }
end
if WAITING[status] or HELD[status] then
    return { "not_finished", status }
end
if f[3] then
    local idem_key = prefix .. "idem:" .. owner .. ":" .. f[3]
    if string.match(redis.call("GET", idem_key) or "", "%S+$") == id then -- else another task has the key by now
        redis.call("DEL", idem_key)
    end
end
purge(member_of(key, queue, owner, id))
redis.call("PUBLISH", prefix .. "changes:" .. id, 0)
redis.call("PUBLISH", prefix .. "deletions", id)
settle()
return { "ok" }
