-- Records: how a task comes into being, is held, queued again and ended.
local BELT_MS = 86400000 -- trim deletes at the purge time; the TTL is the belt behind it

-- These tasks are no longer held, whatever has become of them.
local function release(worker, ids)
    if #ids == 0 then
        return
    end
    redis.call("SREM", prefix .. "held:" .. worker, unpack(ids))
end

local function unique_key(tenant, hash)
    return prefix .. "unique:" .. tenant .. ":" .. hash
end

-- The live task that has a unique key: its id and status; nil: the key is free. One whose holder has ended, or is
-- gone, is free whatever was left behind.
local function holder_of(tenant, hash)
    local id = redis.call("GET", unique_key(tenant, hash))
    local status = id and redis.call("HGET", prefix .. "task:" .. id, "status")
    if WAITING[status] or HELD[status] then
        return id, status
    end
end

local function take_unique(id, tenant, hash)
    redis.call("SET", unique_key(tenant, hash), id)
    redis.call("HSET", prefix .. "task:" .. id, "unique", hash)
end

local function free_unique(id, tenant, hash)
    local key = unique_key(tenant, hash)
    if redis.call("GET", key) == id then -- else it never had it, as a spilled one, or another has it by now
        redis.call("DEL", key)
    end
end

-- any -> final. The caller has taken the task out of where it was. `more`: as in tell_status; `fields`: names and
-- values to write with it, nil for none; `bytes`: what it keeps, nil to have it measured, as it must where it may have
-- output or a history; `unique`: the hash of its unique key, false for none, nil to have it looked up; `mark`: as in final_member.
local function finish_record(id, place, status, retention_ms, version, attempt, more, fields, bytes, unique, mark)
    local key = prefix .. "task:" .. id
    local queue, _, tenant = place_parts(place)
    local purge_ms = now + retention_ms
    if unique == nil then
        unique = redis.call("HGET", key, "unique")
    end
    if unique then
        free_unique(id, tenant, unique)
    end
    redis.call("HSET", key, "status", status, "version", version, "finished", now, "purge", purge_ms,
        unpack(fields or {}))
    if not bytes then
        local history
        bytes, history = kept_bytes(key)
        redis.call("PEXPIRE", key .. ":logs", retention_ms + BELT_MS)
        if history > 0 and status == "failed" then
            redis.call("PEXPIRE", key .. ":attempts", retention_ms + BELT_MS)
        elseif history > 0 then -- it is shown with dead letters alone
            bytes = bytes - history
            redis.call("UNLINK", key .. ":attempts")
            redis.call("HDEL", key, "history", "history_lost")
        end
    end
    local member = final_member(queue, tenant, id, bytes, mark)
    redis.call("ZADD", prefix .. "final", purge_ms, member)
    tally("kept:bytes", bytes)
    if status == "failed" then
        join_letters(queue, tenant, id)
    elseif bytes >= TASK_BYTES + HEAVY_BYTES then
        redis.call("ZADD", prefix .. "heavy", purge_ms, member)
    end
    tell_status(id, version, status, attempt, more)
    redis.call("PEXPIRE", key, retention_ms + BELT_MS)
    redis.call("PEXPIRE", key .. ":events", retention_ms + BELT_MS)
end

-- scheduled | queued | retrying -> canceled | expired | failed. `was`: its status; `more`, `fields`: as in finish_record.
local function end_waiting(id, was, place, bytes, status, retention_ms, version, attempt, more, fields)
    clear_due(id)
    if was == "queued" then
        dequeue(id, place)
    end
    tally_waiting(place, bytes, -1)
    tally_delayed(place, was, -1)
    finish_record(id, place, status, retention_ms, version, attempt, more, fields)
end

-- The record of a new task, whatever becomes of it. `item` is models.Submission. Its place, score and bytes.
local function create(item, status)
    local id, queue, task_type, tenant, priority, spec, payload = unpack(item, 1, 7)
    local place = queue .. ":" .. task_type .. ":" .. tenant
    local score = now - priority * 60000
    local bytes = #payload + TASK_BYTES
    redis.call("HSET", prefix .. "task:" .. id, "status", status, "version", 1, "attempt", 0, "epoch", 0,
        "place", place, "score", score, "bytes", bytes, "created", now, "spec", spec, "payload", payload)
    redis.call("ZADD", prefix .. "all:" .. tenant, now, id)
    if item[15] ~= "" then
        redis.call("HSET", prefix .. "task:" .. id, "ckey", item[16] .. ":" .. item[15])
    end
    return place, score, bytes
end

-- (nothing) -> queued | scheduled. `item` is models.Submission.
local function accept(item)
    local id, tenant, delay_ms, run_at_ms, deadline_ms = item[1], item[4], unpack(item, 8, 10)
    local key = prefix .. "task:" .. id
    local start = math.max(now + delay_ms, run_at_ms)
    local status = start > now and "scheduled" or "queued"
    local place, score, bytes = create(item, status)
    if deadline_ms > 0 then
        redis.call("HSET", key, "deadline", now + deadline_ms)
    end
    if status == "scheduled" then
        redis.call("HSET", key, "due", start)
        set_due(id, deadline_ms > 0 and math.min(start, now + deadline_ms) or start)
    else
        if deadline_ms > 0 then
            set_due(id, now + deadline_ms)
        end
        enqueue(id, place, score, item[15] ~= "" and item[16] .. ":" .. item[15])
    end
    tally_waiting(place, bytes, 1)
    tally_delayed(place, status, 1)
    if item[13] ~= "" then
        take_unique(id, tenant, item[13])
    end
end

-- scheduled | queued | retrying -> expired, where no supervisor has come to do it: what can never start any more must not
-- stand in another's way. Whether it was so.
local function expire_overdue(id, was, retention_ms)
    local f = redis.call("HMGET", prefix .. "task:" .. id, "deadline", "met", "place", "version", "attempt", "bytes")
    local deadline = tonumber(f[1])
    if not deadline or deadline > now or f[2] then
        return false
    end
    end_waiting(id, was, f[3], tonumber(f[6]), "expired", retention_ms, tonumber(f[4]) + 1, tonumber(f[5]), "")
    return true
end

-- What another live task's having its unique key means for a submission. nil: it may be accepted, and then replaces the
-- task that is named; else the answer: {"unique", id}, which is returned, or {"unique_conflict", id, status}.
local function taken_by(item, retention_ms)
    local tenant, unique, on_conflict = item[4], item[13], item[14]
    if unique == "" then
        return nil
    end
    local id, status = holder_of(tenant, unique)
    if not id or WAITING[status] and expire_overdue(id, status, retention_ms) then
        return nil
    end
    if on_conflict == "return" then
        return { "unique", id }
    end
    if on_conflict == "replace" and WAITING[status] then
        return nil, id
    end
    return { "unique_conflict", id, status }
end

-- scheduled | queued | retrying -> canceled: `by` takes its unique key.
local function replace(id, by, retention_ms)
    local f = redis.call("HMGET", prefix .. "task:" .. id, "status", "place", "version", "attempt", "bytes")
    end_waiting(id, f[1], f[2], tonumber(f[5]), "canceled", retention_ms, tonumber(f[3]) + 1, tonumber(f[4]),
        ',"reason":"replaced","by":"' .. by .. '"')
end

-- The current holder of an attempt, checked: nil and the record's fields, or the refusal.
-- "done": this very token ended its attempt already (a repeat after a lost reply).
local function held_by(id, worker, epoch)
    local f = redis.call("HMGET", prefix .. "task:" .. id, "status", "worker", "epoch", "done", "version", "attempt",
        "place", "score", "bytes", "reported", "unique", "ckey")
    if not f[1] then
        return "not_found"
    end
    if f[4] == worker .. ":" .. epoch then
        return "done"
    end
    if f[2] ~= worker or tonumber(f[3]) ~= epoch or not HELD[f[1]] then
        return "stale"
    end
    return nil, {
        status = f[1],
        version = tonumber(f[5]) + 1,
        attempt = tonumber(f[6]),
        place = f[7],
        score = f[8],
        bytes = tonumber(f[9]),
        reported = f[10],
        unique = f[11],
        ckey = f[12],
    }
end

-- running | canceling -> final. `more`, `fields`, `bytes`: as in finish_record.
local function end_held(id, task, status, retention_ms, more, fields, bytes)
    finish_record(id, task.place, status, retention_ms, task.version, task.attempt, more, fields, bytes, task.unique)
    if task.ckey then
        give_place(id, task.place, task.ckey)
    end
end

-- running -> queued | retrying, with its old score. `met`: it has been started, so its start deadline is met.
local function requeue(id, task, attempt, delay_ms, met, more)
    local key = prefix .. "task:" .. id
    local status = delay_ms > 0 and "retrying" or "queued"
    redis.call("HSET", key, "status", status, "version", task.version, "attempt", attempt, "worker", "", "health", "")
    local deadline
    if met then
        redis.call("HSET", key, "met", 1)
    elseif redis.call("HEXISTS", key, "met") == 0 then
        redis.call("HDEL", key, "started")
        deadline = tonumber(redis.call("HGET", key, "deadline"))
    end
    tally_waiting(task.place, task.bytes, 1)
    tally_delayed(task.place, status, 1)
    if delay_ms > 0 then
        redis.call("HSET", key, "due", now + delay_ms)
        set_due(id, math.min(now + delay_ms, deadline or math.huge))
        if task.ckey then
            give_place(id, task.place, task.ckey)
        end
    else
        enqueue(id, task.place, task.score, task.ckey)
        if deadline then
            set_due(id, deadline)
        end
    end
    tell_status(id, task.version, status, attempt, more)
end
