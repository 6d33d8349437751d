#!lua flags=allow-oom
-- End attempts: running -> succeeded | failed | retrying | queued; canceling -> canceled | succeeded.
-- What a submitted task replaces: scheduled | queued | retrying -> canceled | expired.
-- Replies per item {"ok", status}, {"done"} (a repeat), {"stale"} or {"not_found"}.
local worker = ARGV[2] -- string first half of every token
local max_bytes = tonumber(ARGV[3]) -- int    that finished tasks may keep
local items = cmsgpack.unpack(ARGV[4]) -- list   of models.Finish

-- The status an attempt's outcome leads to.
local function status_after(outcome, task, max_attempts, delay_ms)
    if outcome == "succeeded" then
        return "succeeded"
    end
    if task.status == "canceling" then
        return "canceled"
    end
    if outcome == "retry" and task.attempt < max_attempts then
        return delay_ms > 0 and "retrying" or "queued"
    end
    return "failed"
end

local released = {}
changes, versions = {}, {}

-- Another live task's having their unique key never fails the parent: its events say which were left out.
local function accept_submitted(id, task, submitted, retention_ms)
    if task.unique and #submitted > 0 then
        free_unique(id, select(3, place_parts(task.place)), task.unique) -- it may submit its own successor
    end
    for _, item in ipairs(submitted) do
        local taken, replaced = taken_by(item, retention_ms)
        if taken then
            tell(id, "skipped", task.version, string.format('{"task_id":"%s","unique_task_id":"%s"}', item[1], taken[2]))
            task.version = task.version + 1
        else
            if replaced then
                replace(replaced, item[1], retention_ms)
            end
            accept(item)
        end
    end
end

local function finish(item)
    local id, epoch, outcome, result, error, delay_ms, progress, effort, max_attempts, retention_ms, dead_retention_ms =
        unpack(item, 1, 11)
    local submitted = item[12]
    local refused, task = held_by(id, worker, epoch)
    if refused then
        return { refused }
    end
    local key = prefix .. "task:" .. id
    local fields, more = { "done", worker .. ":" .. epoch }, ""
    if task.reported then
        fields[#fields + 1], fields[#fields + 2] = "health", ""
    end
    if error ~= "" then
        more = ',"error":' .. error
        fields[#fields + 1], fields[#fields + 2] = "error", error
    end
    if progress ~= "" then
        fields[#fields + 1], fields[#fields + 2] = "progress", progress
        tell(id, "progress", task.version, progress) -- the last value comes before the end
        task.version = task.version + 1
    end
    if effort ~= "" then
        fields[#fields + 1], fields[#fields + 2] = "effort", effort
    end
    local status = status_after(outcome, task, max_attempts, delay_ms)
    if status == "succeeded" then
        fields[#fields + 1], fields[#fields + 2] = "result", result
        if epoch > 1 or task.reported then -- else there is none
            redis.call("HDEL", key, "error", "checkpoint")
        end
        accept_submitted(id, task, submitted, retention_ms)
    end
    released[#released + 1] = id
    stops_running(task.place)
    if WAITING[status] then
        redis.call("HSET", key, unpack(fields))
        remember(key, error, now)
        requeue(id, task, task.attempt, delay_ms, true, more)
    else
        local kept = status == "failed" and dead_retention_ms or retention_ms
        local plain = epoch == 1 and not task.reported -- else it may have output, or a history
        local bytes = plain and task.bytes + (status == "succeeded" and #result or 0) or nil
        end_held(id, task, status, kept, more, fields, bytes)
    end
    return { "ok", status }
end

local replies = {}
for i, item in ipairs(items) do
    replies[i] = finish(item)
end
release(worker, released)
make_room(max_bytes, 2 * #items) -- here, too: results come faster than anybody trims
settle()
wake_watchers()
return replies
