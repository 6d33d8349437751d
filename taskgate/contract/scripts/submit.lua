#!lua
-- Accept tasks: (nothing) -> queued | scheduled. All items lie in this partition.
-- Replies per item {"ok"}, {"replay", task_id}, {"conflict"} or {"full", limit, retry_ms}.
local limit_tasks = tonumber(ARGV[2]) -- int    tasks that may wait in a queue
local limit_bytes = tonumber(ARGV[3]) -- int    bytes that may wait in a queue
local items = cmsgpack.unpack(ARGV[4]) -- list   of models.Submission

-- What an earlier request with the same key led to; a key whose task is purged is free.
local function earlier(idem_key, fingerprint)
    local seen, task_id = string.match(redis.call("GET", idem_key) or "", "^(%S+) (%S+)$")
    if not seen or redis.call("EXISTS", prefix .. "task:" .. task_id) == 0 then
        return nil
    end
    return seen == fingerprint and { "replay", task_id } or { "conflict" }
end

local function submit(item)
    local id, queue, tenant, payload, key, fingerprint = item[1], item[2], item[4], item[7], item[11], item[12]
    if redis.call("EXISTS", prefix .. "task:" .. id) == 1 then
        return { "ok" } -- the reply to the same submission was lost
    end
    local idem_key = prefix .. "idem:" .. tenant .. ":" .. key
    local reply = key ~= "" and earlier(idem_key, fingerprint)
    if reply then
        return reply
    end
    local limit = full(queue, #payload + TASK_BYTES, limit_tasks, limit_bytes)
    if limit then
        return { "full", limit, retry_in_ms(queue) }
    end
    accept(item)
    if key ~= "" then
        redis.call("SET", idem_key, fingerprint .. " " .. id, "PX", IDEMPOTENCY_MS)
        redis.call("HSET", prefix .. "task:" .. id, "idem", key)
    end
    return { "ok" }
end

local replies = {}
for i, item in ipairs(items) do
    replies[i] = submit(item)
end
settle()
return replies
