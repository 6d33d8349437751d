#!lua flags=allow-oom
-- Give claims up without an end: running -> queued | retrying with the old score; canceling -> canceled.
-- Replies per item {"ok", status}, {"done"} (a repeat), {"stale"} or {"not_found"}.
local worker = ARGV[2] -- string first half of every token
local neighbour_limit = tonumber(ARGV[3]) -- int    so often it may have been there when its child died of another
local items = cmsgpack.unpack(ARGV[4]) -- list   of models.HandBack

local released = {}

-- Its child died, and not of it as far as one knows: uncounted, but not for ever. What is a suspect, or was there too
-- often, waits from now on in a lane of its own, of which each task runs in a child of its own.
local function was_there(id, task, suspect)
    local key = prefix .. "task:" .. id
    local times = redis.call("HINCRBY", key, "neighbours", suspect and neighbour_limit or 1)
    local queue, task_type, tenant = place_parts(task.place)
    if times >= neighbour_limit and not string.find(task_type, ALONE, 1, true) then
        task.place = queue .. ":" .. task_type .. ALONE .. ":" .. tenant
        redis.call("HSET", key, "place", task.place)
    end
end

local function hand_back(item)
    local id, epoch, delay_ms, ran, reason, retention_ms = unpack(item, 1, 6)
    local refused, task = held_by(id, worker, epoch)
    if refused then
        return { refused }
    end
    local key = prefix .. "task:" .. id
    redis.call("HSET", key, "done", worker .. ":" .. epoch)
    released[#released + 1] = id
    stops_running(task.place)
    local more = ',"reason":"' .. reason .. '"'
    if task.status == "canceling" then
        end_held(id, task, "canceled", retention_ms, more)
        return { "ok", "canceled" }
    end
    if reason == "neighbour" or reason == "suspect" then
        was_there(id, task, reason == "suspect")
    end
    requeue(id, task, task.attempt - 1, delay_ms, ran, more)
    return { "ok", delay_ms > 0 and "retrying" or "queued" }
end

local replies = {}
for i, item in ipairs(items) do
    replies[i] = hand_back(item)
end
release(worker, released)
settle()
return replies
