#!lua flags=allow-oom
-- Delete finished tasks whose retention is over.
-- Replies the number deleted; as many as `limit` means that more may be due.
local limit = tonumber(ARGV[2]) -- int    tasks a call

local due = redis.call("ZRANGEBYSCORE", prefix .. "final", "-inf", now, "LIMIT", 0, limit)
for _, member in ipairs(due) do
    local queue, tenant, id = string.match(member, "^([^:]+):([^:]+):([^:]+)$")
    local key = prefix .. "task:" .. id
    redis.call("UNLINK", key, key .. ":events", key .. ":logs", key .. ":alive")
    redis.call("ZREM", prefix .. "all:" .. tenant, id)
    redis.call("ZREM", prefix .. "dead:" .. queue, id)
    redis.call("ZREM", prefix .. "final", member)
end
return #due
