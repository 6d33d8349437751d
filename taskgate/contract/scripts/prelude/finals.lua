-- Finished tasks: what is kept of them, for how long, dead letters and their history.
local HISTORY_ATTEMPTS, HISTORY_BYTES = 20, 32768 -- kept of a task's unsuccessful attempts before its last one

-- The entry of a finished task in `final` and `heavy`: what is known of it also when its record is gone.
-- `mark`: SPILLED or nil.
local function final_member(queue, tenant, id, bytes, mark)
    return string.format("%s:%s:%s:%d%s", queue, tenant, id, bytes, mark or "")
end

-- And of these, how much its history takes; 0: it has none.
local function kept_bytes(key)
    local f = redis.call("HMGET", key, "logs", "history")
    local logs, history = tonumber(f[1]) or 0, tonumber(f[2]) or 0
    return TASK_BYTES + redis.call("HSTRLEN", key, "payload") + redis.call("HSTRLEN", key, "result") + logs + history,
        history
end

-- Put an unsuccessful attempt, as the record has it now, into the task's history: what comes next overwrites it there.
-- The newest always stays. `error`: JSON, "" for none.
local function remember(key, error, finished)
    local f = redis.call("HMGET", key, "attempt", "started", "worker", "effort", "redriven_at", "history",
        "history_lost")
    local entry = string.format(
        '{"attempt":%d,"started_ms":%d,"finished_ms":%d,"worker":"%s","redriven_ms":%d,"error":%s,"effort":%s}',
        f[1], f[2], finished, f[3], f[5] or 0, error == "" and "null" or error, f[4] or "null")
    local kept, lost = (tonumber(f[6]) or 0) + #entry, tonumber(f[7]) or 0
    local count = redis.call("RPUSH", key .. ":attempts", entry)
    while count > 1 and (count > HISTORY_ATTEMPTS or kept > HISTORY_BYTES) do
        kept, lost, count = kept - #redis.call("LPOP", key .. ":attempts"), lost + 1, count - 1
    end
    redis.call("HSET", key, "history", kept, "history_lost", lost)
end

-- The entry in `final` of a finished task that still has its record.
local function member_of(key, queue, tenant, id)
    return final_member(queue, tenant, id, kept_bytes(key), redis.call("HGET", key, "spilled"))
end

-- A finished task no longer counts among those that are kept.
local function leave_final(member)
    local queue, bytes, mark = string.match(member, "^([^:]+):[^:]+:[^:]+:(%d+)(.*)$")
    redis.call("ZREM", prefix .. "final", member)
    tally("kept:bytes", -tonumber(bytes))
    if mark == SPILLED then
        tally("spilled:queue:" .. queue, -1)
        tally("spilled_bytes:queue:" .. queue, -tonumber(bytes))
    end
end

local function join_letters(queue, tenant, id)
    redis.call("ZADD", prefix .. "dead:" .. queue, now, id)
    redis.call("ZADD", prefix .. "letters:" .. tenant, now, id)
end

local function leave_letters(queue, tenant, id)
    if redis.call("ZREM", prefix .. "dead:" .. queue, id) == 1 then -- most tasks never were dead letters
        redis.call("ZREM", prefix .. "letters:" .. tenant, id)
    end
end

-- `name`: as in `drained`.
local function forget_speed(name)
    redis.call("HDEL", usage_key, "drain_at:" .. name, "drain_n:" .. name, "drain_rate:" .. name, "room_at:" .. name)
end

-- Delete a finished task.
local function purge(member)
    local queue, tenant, id = string.match(member, "^([^:]+):([^:]+):([^:]+)")
    local key = prefix .. "task:" .. id
    redis.call("UNLINK", key, key .. ":events", key .. ":logs", key .. ":alive", key .. ":attempts")
    redis.call("ZREM", prefix .. "all:" .. tenant, id)
    leave_letters(queue, tenant, id)
    redis.call("ZREM", prefix .. "heavy", member)
    leave_final(member)
    -- Clients name queues as they like: the measured speed of what is not in use goes with its tasks.
    local unit = "tenant:" .. tenant
    local used = redis.call("HMGET", usage_key, "waiting:queue:" .. queue, "running:queue:" .. queue,
        "waiting:" .. unit, "running:" .. unit)
    if not used[1] and not used[2] then
        forget_speed(queue)
    end
    if not used[3] and not used[4] then
        forget_speed(unit)
    end
end

-- Drop payload, result and output of a finished task; the rest of it stays.
local function lighten(member)
    local queue, tenant, id, bytes = string.match(member, "^([^:]+):([^:]+):([^:]+):(%d+)$")
    local key = prefix .. "task:" .. id
    local light = final_member(queue, tenant, id, TASK_BYTES)
    redis.call("ZREM", prefix .. "heavy", member)
    redis.call("ZADD", prefix .. "final", redis.call("ZSCORE", prefix .. "final", member), light)
    redis.call("ZREM", prefix .. "final", member)
    tally("kept:bytes", TASK_BYTES - tonumber(bytes))
    if redis.call("EXISTS", key) == 1 then -- else its time to live was over before anybody trimmed
        local logs = tonumber(redis.call("HGET", key, "logs")) or 0
        if logs > 0 then
            redis.call("UNLINK", key .. ":logs")
            redis.call("HINCRBY", key, "logs_lost", logs)
        end
        redis.call("HDEL", key, "payload", "result", "logs")
        redis.call("HSET", key, "lightened", 1)
        redis.call("PUBLISH", prefix .. "changes:" .. id, redis.call("HINCRBY", key, "version", 1))
    end
end

-- Bring what finished tasks keep down to `max_bytes`: the payloads and results of the oldest, then the oldest whole.
-- Dead letters go whole only: without its payload none could be redriven. Returns how many tasks, `limit` at most.
local function make_room(max_bytes, limit)
    local kept = tonumber(redis.call("HGET", usage_key, "kept:bytes")) or 0
    local done = 0
    for _, stage in ipairs({ { "heavy", lighten }, { "final", purge } }) do
        if kept + (tallies["kept:bytes"] or 0) > max_bytes and done < limit then
            for _, member in ipairs(redis.call("ZRANGE", prefix .. stage[1], 0, limit - done - 1)) do
                if kept + (tallies["kept:bytes"] or 0) <= max_bytes then
                    break
                end
                stage[2](member)
                done = done + 1
            end
        end
    end
    return done
end
