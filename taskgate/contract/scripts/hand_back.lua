#!lua flags=allow-oom
-- Give claims up without an end: running -> queued | retrying with the old score; canceling -> canceled.
-- Replies per item {"ok", status}, {"done"} (a repeat), {"stale"} or {"not_found"}.
local worker = ARGV[2] -- string first half of every token
local items = cmsgpack.unpack(ARGV[3]) -- list   of models.HandBack

local released = {}

local function hand_back(item)
    local id, epoch, counted, delay_ms, ran, reason, retention_ms = unpack(item, 1, 7)
    local refused, task = held_by(id, worker, epoch)
    if refused then
        return { refused }
    end
    local key = prefix .. "task:" .. id
    redis.call("HSET", key, "done", worker .. ":" .. epoch)
    released[#released + 1] = id
    tally_running(task.place, -1)
    local more = ',"reason":"' .. reason .. '"'
    if task.status == "canceling" then
        finish_record(id, task.place, "canceled", retention_ms, task.version, task.attempt, more)
        return { "ok", "canceled" }
    end
    if reason == "neighbour" then
        redis.call("HINCRBY", key, "neighbours", 1)
    end
    requeue(id, task, counted and task.attempt or task.attempt - 1, delay_ms, ran, more)
    return { "ok", delay_ms > 0 and "retrying" or "queued" }
end

local replies = {}
for i, item in ipairs(items) do
    replies[i] = hand_back(item)
end
release(worker, released)
settle()
return replies
