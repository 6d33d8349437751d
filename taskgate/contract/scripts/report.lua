#!lua flags=allow-oom
-- Show what running attempts do: progress, effort, health, checkpoint, events, output. The state stays.
-- Replies per item "ok", "done" (a repeat), "stale" or "not_found".
local worker = ARGV[2] -- string first half of every token
local items = cmsgpack.unpack(ARGV[3]) -- list   of models.Report

local LOG_ENTRIES = 1000
local LOG_BYTES = 262144 -- of text

-- The id that the task's streams are at, as two numbers.
local function last_id(key)
    local info = redis.call("XINFO", "STREAM", key)
    for i = 1, #info, 2 do
        if info[i] == "last-generated-id" then
            local ms, n = string.match(info[i + 1], "^(%d+)-(%d+)$")
            return tonumber(ms), tonumber(n)
        end
    end
end

-- Drop the oldest output of a task until the rest is within its limits. Returns bytes kept, and dropped.
local function shorten(key, kept)
    local entries, lost = redis.call("XLEN", key), 0
    while kept > LOG_BYTES or entries > LOG_ENTRIES do
        local dropped = {}
        for _, entry in ipairs(redis.call("XRANGE", key, "-", "+", "COUNT", 64)) do
            if kept <= LOG_BYTES and entries <= LOG_ENTRIES then
                break
            end
            local bytes = tonumber(entry[2][8])
            dropped[#dropped + 1] = entry[1]
            kept, lost, entries = kept - bytes, lost + bytes, entries - 1
        end
        redis.call("XDEL", key, unpack(dropped))
    end
    return kept, lost
end

-- Append output. Its ids lie above the last of both streams, and by XSETID later events above these: one order.
local function append(key, seq, logs, lost)
    local events_key, logs_key = key .. ":events", key .. ":logs"
    local f = redis.call("HMGET", key, "logs", "logs_lost")
    local kept = tonumber(f[1]) or 0
    if #logs > 0 then
        local ms, n = last_id(events_key)
        if now > ms then
            ms, n = now, -1
        end
        for _, log in ipairs(logs) do
            n = n + 1
            redis.call("XADD", logs_key, string.format("%d-%d", ms, n), "event", "log", "seq", seq,
                "data", log[1], "size", log[2])
            seq = seq + 1
            kept = kept + log[2]
        end
        redis.call("XSETID", events_key, string.format("%d-%d", ms, n))
        local dropped
        kept, dropped = shorten(logs_key, kept)
        lost = lost + dropped
    end
    redis.call("HSET", key, "logs", kept, "logs_lost", (tonumber(f[2]) or 0) + lost)
end

local function report(item)
    local id, epoch, number, progress, effort, health, checkpoint, events, logs, logs_lost, stage = unpack(item, 1, 11)
    local key = prefix .. "task:" .. id
    local refused, task = held_by(id, worker, epoch)
    if refused then
        return refused
    end
    local seen_epoch, seen = string.match(redis.call("HGET", key, "reported") or "", "^(%d+):(%d+)$")
    if tonumber(seen_epoch) == epoch and number <= tonumber(seen) then
        return "done"
    end
    -- Each entry has a seq of its own: by task and seq a client knows what it has.
    local version = task.version + math.max(#events + #logs - 1, 0)
    local fields = { "version", version, "reported", epoch .. ":" .. number }
    local function set(name, value)
        if value ~= "" then
            fields[#fields + 1], fields[#fields + 2] = name, value
        end
    end
    set("progress", progress)
    set("effort", effort)
    set("health", health)
    set("checkpoint", checkpoint)
    set("stage", stage)
    redis.call("HSET", key, unpack(fields))
    for i, event in ipairs(events) do
        tell(id, event[1], task.version + i - 1, event[2])
    end
    if #logs > 0 or logs_lost > 0 then
        append(key, task.version + #events, logs, logs_lost)
    end
    if #events == 0 then
        redis.call("PUBLISH", prefix .. "changes:" .. id, version)
    end
    return "ok"
end

local replies = {}
for i, item in ipairs(items) do
    replies[i] = report(item)
end
return replies
