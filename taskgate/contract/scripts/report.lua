#!lua flags=allow-oom
-- Show what running attempts do: progress, effort, health, checkpoint, events. The state stays.
-- Replies per item "ok", "done" (a repeat), "stale" or "not_found".
local worker = ARGV[2] -- string first half of every token
local items = cmsgpack.unpack(ARGV[3]) -- list   of models.Report

local function report(item)
    local id, epoch, number, progress, effort, health, checkpoint, events = unpack(item, 1, 8)
    local key = prefix .. "task:" .. id
    local refused, task = held_by(id, worker, epoch)
    if refused then
        return refused
    end
    local seen_epoch, seen = string.match(redis.call("HGET", key, "reported") or "", "^(%d+):(%d+)$")
    if tonumber(seen_epoch) == epoch and number <= tonumber(seen) then
        return "done"
    end
    local fields = { "version", task.version, "reported", epoch .. ":" .. number }
    local function set(name, value)
        if value ~= "" then
            fields[#fields + 1], fields[#fields + 2] = name, value
        end
    end
    set("progress", progress)
    set("effort", effort)
    set("health", health)
    set("checkpoint", checkpoint)
    redis.call("HSET", key, unpack(fields))
    for _, event in ipairs(events) do
        tell(id, event[1], task.version, event[2])
    end
    if #events == 0 then
        redis.call("PUBLISH", prefix .. "changes:" .. id, task.version)
    end
    return "ok"
end

local replies = {}
for i, item in ipairs(items) do
    replies[i] = report(item)
end
return replies
