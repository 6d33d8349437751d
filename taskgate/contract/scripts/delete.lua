#!lua flags=allow-oom
-- Delete finished tasks: succeeded | failed | canceled | expired -> nothing. Their idempotency keys are free again.
-- Replies per id {"ok"}, {"not_found"} or {"not_finished", status}.
local tenant = ARGV[2] -- string whose tasks they must be; "" is anybody's
local dead_before_ms = tonumber(ARGV[3]) -- int    only dead letters that failed before then; 0: whatever has ended
local ids = cmsgpack.unpack(ARGV[4]) -- list   of task ids

local function delete(id)
    local key = prefix .. "task:" .. id
    local f = redis.call("HMGET", key, "status", "place", "idem", "finished")
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
    if dead_before_ms > 0 and (status ~= "failed" or tonumber(f[4]) >= dead_before_ms) then
        return { "not_found" }
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
    return { "ok" }
end

local replies = {}
for i, id in ipairs(ids) do
    replies[i] = delete(id)
end
settle()
return replies
