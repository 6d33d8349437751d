-- Prepended to every script: the arguments all share, and the moves several transitions are made of.
-- Keys that a script cannot know beforehand are built from the prefix; its hash tag keeps them in one slot.
local prefix = KEYS[1] -- string  tg:{partition}:
local now = tonumber(ARGV[1]) -- int     Unix ms; "" is the Redis clock, which is what production passes
if not now then
    local t = redis.call("TIME")
    now = t[1] * 1000 + math.floor(t[2] / 1000)
end

local TASK_BYTES = 2048 -- what admission counts for a task besides its payload
local EVENTS_KEPT = 500
local HISTORY_ATTEMPTS, HISTORY_BYTES = 20, 32768 -- kept of a task's unsuccessful attempts before its last one
local IDEMPOTENCY_MS = 86400000
local HEAVY_BYTES = 1024 -- of payload and result: what is dropped before whole tasks are
local BELT_MS = 86400000 -- trim deletes at the purge time; the TTL is the belt behind it
local RETRY_CAP_MS = 60000
local ROW_HASTE = 1.1 -- refused callers come 0 to 20 % later than they are told here, and no room shall be left over
local UNMEASURED_STEP_MS = 10 -- between refused callers while nobody knows a queue's speed: else all come again at once
local SPILLED = "!" -- field `spilled` of a dead letter that never was in its queue; ends its entry in `final`
local NEW = -1 -- virtual time of a lane that no claim has seen yet
local BEHIND = 1 / 8 -- so much virtual time is a newcomer behind whoever had the last turn: next, but not without end before others
local ALONE = "!alone" -- ends the names of lanes whose tasks each run in a child of their own; no type can have it
local WAITING = { scheduled = true, queued = true, retrying = true }
local HELD = { running = true, canceling = true }

local usage_key = prefix .. "usage"
local tallies = {}

local function tally(field, by)
    tallies[field] = (tallies[field] or 0) + by
end

-- Write what was tallied. A script that changes counts ends with it.
local function settle()
    for field, by in pairs(tallies) do
        if by ~= 0 and redis.call("HINCRBY", usage_key, field, by) == 0 then
            redis.call("HDEL", usage_key, field) -- tenants come and go; their counters must not stay
        end
    end
    tallies = {}
end

local places = {}

-- Queue, type and tenant, then the names of its counters: most tasks of a call are of one place.
local function parts_of(place)
    local parts = places[place]
    if not parts then
        parts = { string.match(place, "^([^:]+):([^:]+):([^:]+)$") }
        local queue, tenant = parts[1], parts[3]
        parts[4], parts[5] = "waiting:queue:" .. queue, "bytes:queue:" .. queue
        parts[6], parts[7] = "waiting:tenant:" .. tenant, "bytes:tenant:" .. tenant
        parts[8], parts[10] = "running:queue:" .. queue, "running:tenant:" .. tenant
        parts[9] = "tenant:" .. tenant
        parts[11] = "running:type:" .. string.gsub(parts[2], ALONE .. "$", "")
        places[place] = parts
    end
    return parts
end

local function place_parts(place)
    return unpack(parts_of(place), 1, 3)
end

-- Count a task in (by = 1) or out (by = -1) of what waits.
local function tally_waiting(place, bytes, by)
    local parts = parts_of(place)
    tally(parts[4], by)
    tally(parts[5], by * bytes)
    tally(parts[6], by)
    tally(parts[7], by * bytes)
end

-- Count a waiting task in (by = 1) or out (by = -1) of those that are not queued yet: `queued` is what else waits.
local function tally_delayed(place, status, by)
    if status == "scheduled" or status == "retrying" then
        local queue, _, tenant = place_parts(place)
        tally(status .. ":queue:" .. queue, by)
        tally(status .. ":tenant:" .. tenant, by)
    end
end

-- The type of a lane's tasks.
local function type_of(lane_type)
    return (string.gsub(lane_type, ALONE .. "$", ""))
end

local function tally_running(place, by)
    local parts = parts_of(place)
    tally(parts[8], by)
    tally(parts[10], by)
    tally(parts[11], by)
end

local woken = {}

-- Leave the one marker that idle supervisors block on; while the type is at its limit, whoever ends one of its tasks does.
local function wake(queue, lane_type)
    local key = prefix .. "wake:" .. queue .. ":" .. lane_type
    if woken[key] then
        return
    end
    if redis.call("LLEN", key) == 0 then
        local full_key = prefix .. "capped-type:" .. type_of(lane_type)
        if redis.call("EXISTS", full_key) == 1 then
            redis.call("SADD", full_key, queue .. ":" .. lane_type)
            return -- not woken: this very call may end the task that others wait for
        end
        redis.call("RPUSH", key, 1)
    end
    woken[key] = true
end

local entered = {}

-- A tenant comes into the fair order of a lane: right behind whoever had the last turn, or where its own last turn has
-- left it. So it has its first task soon, and gains nothing by going away and coming back. A new lane stays NEW until a
-- claim that serves it: lanes that nobody serves any more would hold the minimum down for all.
local function enter(queue, lane_type, tenant)
    local f = redis.call("ZMSCORE", prefix .. "turns:" .. queue .. ":" .. lane_type, "", tenant)
    local behind = f[1] and tonumber(f[1]) + BEHIND or 0
    redis.call("ZADD", prefix .. "lane:" .. queue .. ":" .. lane_type, math.max(behind, tonumber(f[2]) or 0), tenant)
    if redis.call("ZADD", prefix .. "lanes:" .. queue, "NX", NEW, lane_type) == 1 then
        redis.call("SADD", prefix .. "queues", queue)
    end
    wake(queue, lane_type)
end

-- The places of a concurrency key, what waits for one, and how many there are. `ckey` is the record's field.
local function key_of(place, ckey)
    local _, lane_type, tenant = place_parts(place)
    local most, hash = string.match(ckey, "^(%d+):(.+)$")
    local name = type_of(lane_type) .. ":" .. tenant .. ":" .. hash
    return prefix .. "places:" .. name, prefix .. "blocked:" .. name, tonumber(most)
end

-- Whether a task of a concurrency key has one of its places; it takes a free one.
local function take_place(id, place, ckey)
    local places_key, _, most = key_of(place, ckey)
    if redis.call("SISMEMBER", places_key, id) == 1 then
        return true
    end
    return redis.call("SCARD", places_key) < most and redis.call("SADD", places_key, id) == 1
end

-- Queue a task; without a place of its concurrency key (`ckey`: the record's field, false for none) it waits for one.
local function enqueue(id, place, score, ckey)
    if ckey and not take_place(id, place, ckey) then
        local _, blocked_key = key_of(place, ckey)
        redis.call("ZADD", blocked_key, score, id)
        return
    end
    redis.call("ZADD", prefix .. "ready:" .. place, score, id)
    if entered[place] then
        return
    end
    entered[place] = true
    local queue, lane_type, tenant = place_parts(place)
    local lane = queue .. ":" .. lane_type
    if redis.call("ZSCORE", prefix .. "lane:" .. lane, tenant) then
        wake(queue, lane_type)
    elseif redis.call("SISMEMBER", prefix .. "capped:" .. tenant, lane) == 0 then
        enter(queue, lane_type, tenant)
    end
end

-- A task of a concurrency key needs its place no more, or does not wait for one: the next of those that do have it.
local function give_place(id, place, ckey)
    local places_key, blocked_key = key_of(place, ckey)
    redis.call("SREM", places_key, id)
    local next_id = redis.call("ZRANGE", blocked_key, 0, 0)[1]
    while next_id do
        local f = redis.call("HMGET", prefix .. "task:" .. next_id, "place", "score", "ckey")
        local _, _, most = key_of(f[1], f[3])
        if redis.call("SCARD", places_key) >= most then
            return
        end
        redis.call("ZREM", blocked_key, next_id)
        enqueue(next_id, f[1], f[2], f[3])
        next_id = redis.call("ZRANGE", blocked_key, 0, 0)[1]
    end
end

-- A tenant leaves a lane, which remembers its virtual time. Nothing of an empty lane stays, its marker neither: clients
-- name queues as they like. Whether that was the end of the lane.
local function leave(place, time)
    local queue, lane_type, tenant = place_parts(place)
    local lane = queue .. ":" .. lane_type
    local lane_key, turns_key = prefix .. "lane:" .. lane, prefix .. "turns:" .. lane
    redis.call("ZREM", lane_key, tenant)
    entered[place] = nil
    if redis.call("EXISTS", lane_key) == 1 then
        redis.call("ZADD", turns_key, time, tenant)
        return false
    end
    local lanes_key, wake_key = prefix .. "lanes:" .. queue, prefix .. "wake:" .. lane
    redis.call("ZREM", lanes_key, lane_type)
    woken[wake_key] = nil
    if redis.call("EXISTS", lanes_key) == 1 then
        redis.call("DEL", wake_key, turns_key)
    else
        redis.call("DEL", wake_key, turns_key, prefix .. "turns:" .. queue)
        redis.call("SREM", prefix .. "queues", queue)
    end
    return true
end

-- A tenant is at its limit: it leaves a lane until fewer of its tasks run. Whether that was the end of the lane.
local function step_aside(place, time)
    local queue, lane_type, tenant = place_parts(place)
    redis.call("SADD", prefix .. "capped:" .. tenant, queue .. ":" .. lane_type)
    redis.call("SADD", prefix .. "capped", tenant)
    return leave(place, time)
end

-- Whether a tenant has nothing more in a lane, which it leaves then, and whether that was the end of the lane. `time`: its
-- virtual time there, nil to look it up.
local function leave_if_empty(place, time)
    if redis.call("EXISTS", prefix .. "ready:" .. place) == 1 then
        return false
    end
    local queue, lane_type, tenant = place_parts(place)
    local lane = queue .. ":" .. lane_type
    time = time or redis.call("ZSCORE", prefix .. "lane:" .. lane, tenant)
    if time then
        return true, leave(place, time)
    end
    local capped_key = prefix .. "capped:" .. tenant
    redis.call("SREM", capped_key, lane)
    entered[place] = nil
    if redis.call("EXISTS", capped_key) == 0 then
        redis.call("SREM", prefix .. "capped", tenant)
    end
    return true, false
end

local function dequeue(id, place)
    local ckey = redis.call("HGET", prefix .. "task:" .. id, "ckey")
    local blocked_key = ckey and select(2, key_of(place, ckey))
    if not blocked_key or redis.call("ZREM", blocked_key, id) == 0 then
        redis.call("ZREM", prefix .. "ready:" .. place, id)
        leave_if_empty(place)
    end
    if ckey then
        give_place(id, place, ckey)
    end
end

-- The lanes that a tenant has left for its limit have it back; the next claim sees whether it may.
local function readmit(tenant)
    local capped_key = prefix .. "capped:" .. tenant
    local lanes = redis.call("SMEMBERS", capped_key)
    redis.call("DEL", capped_key)
    redis.call("SREM", prefix .. "capped", tenant)
    for _, lane in ipairs(lanes) do
        local queue, lane_type = string.match(lane, "^([^:]+):(.+)$")
        enter(queue, lane_type, tenant)
    end
end

-- Supervisors may look for tasks of a type again that was at its limit.
local function reopen(task_type)
    local full_key = prefix .. "capped-type:" .. task_type
    local lanes = redis.call("SMEMBERS", full_key)
    redis.call("DEL", full_key)
    for _, lane in ipairs(lanes) do
        if redis.call("EXISTS", prefix .. "lane:" .. lane) == 1 then
            wake(string.match(lane, "^([^:]+):(.+)$"))
        end
    end
end

local looked_at = {}

-- A task does not run any more: what waits because of that may go on.
local function stops_running(place)
    tally_running(place, -1)
    if not looked_at[place] then
        looked_at[place] = true
        local _, lane_type, tenant = place_parts(place)
        local task_type = type_of(lane_type)
        if redis.call("EXISTS", prefix .. "capped:" .. tenant, prefix .. "capped-type:" .. task_type) > 0 then
            readmit(tenant)
            reopen(task_type)
        end
    end
end

-- What a tenant may: its cost of a task in virtual time, and how many may run at a time (0: any). `shares`: of
-- Store.claim, "" where nobody is treated in a special way.
local function share_of(shares, tenant)
    if shares == "" then
        return 1, 0
    end
    local _, at = string.find(shares, "\n" .. tenant .. " ", 1, true)
    if not at then
        _, at = string.find(shares, "\n* ", 1, true)
    end
    local weight, most = string.match(shares, "^(%S+) (%d+)", at + 1)
    return 1 / tonumber(weight), tonumber(most)
end

-- Something must happen to a waiting task at that time; an earliest one is told to the supervisors.
local function set_due(id, at)
    local first = redis.call("ZRANGE", prefix .. "due", 0, 0, "WITHSCORES")
    redis.call("ZADD", prefix .. "due", at, id)
    if not first[2] or at < tonumber(first[2]) then
        redis.call("PUBLISH", prefix .. "notices", string.format("due %d", at))
    end
end

local function clear_due(id)
    redis.call("ZREM", prefix .. "due", id)
end

local changes, versions -- tables in a script that tells of many tasks and ends with `wake_watchers`

-- Append to the task's stream and wake its watchers. `data` is a JSON object.
local function tell(id, name, version, data)
    redis.call("XADD", prefix .. "task:" .. id .. ":events", "MAXLEN", "~", EVENTS_KEPT, "*",
        "event", name, "seq", version, "data", data)
    local channel = prefix .. "changes:" .. id
    if changes then
        changes[#changes + 1], versions[#versions + 1] = channel, version
    else
        redis.call("PUBLISH", channel, version)
    end
end

-- Most tasks have none: to ask for all at once costs less than to tell nobody of each.
local function wake_watchers()
    if #changes == 0 then
        return
    end
    local watched = redis.call("PUBSUB", "NUMSUB", unpack(changes))
    for i, channel in ipairs(changes) do
        if watched[2 * i] > 0 then
            redis.call("PUBLISH", channel, versions[i])
        end
    end
end

-- A status event; `more` is "" or further JSON members with a leading comma.
local function tell_status(id, version, status, attempt, more)
    tell(id, "status", version, string.format('{"status":"%s","attempt":%d%s}', status, attempt, more))
end

-- These tasks are no longer held, whatever has become of them.
local function release(worker, ids)
    if #ids == 0 then
        return
    end
    redis.call("SREM", prefix .. "held:" .. worker, unpack(ids))
end

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

local DRAIN_FIELDS = { "drain_at:", "drain_n:", "drain_rate:" }

-- Tasks leaving per second, measured while something waits. Fields of usage, by queue, and as `tenant:<t>` by tenant that
-- has limits: drain_at (start of the window), drain_n (left since), drain_rate (of the windows before; absent: none yet).
local function drain(name, count, fields, at, n, rate)
    if not at and string.sub(name, 1, 7) == "tenant:" then
        return
    end
    at, n = math.min(at or now, now), (n or 0) + count
    if now - at >= 1000 then
        local seen = n * 1000 / (now - at)
        redis.call("HSET", usage_key, fields[1], now, fields[2], 0, fields[3], rate and (rate + seen) / 2 or seen)
    else
        redis.call("HSET", usage_key, fields[1], at, fields[2], n)
    end
end

-- Count tasks that have left: `left` says how many by name.
local function drained(left)
    local names = {}
    for name in pairs(left) do
        names[#names + 1] = name
    end
    for first = 1, #names, 1000 do -- `unpack` ends below 8,000
        local fields = {}
        for i = first, math.min(first + 999, #names) do
            for _, field in ipairs(DRAIN_FIELDS) do
                fields[#fields + 1] = field .. names[i]
            end
        end
        local f = redis.call("HMGET", usage_key, unpack(fields))
        for i = 1, #fields, 3 do
            local name = names[first + (i - 1) / 3]
            drain(name, left[name], { unpack(fields, i, i + 2) }, tonumber(f[i]), tonumber(f[i + 1]), tonumber(f[i + 2]))
        end
    end
end

local function no_limit(limit)
    return limit > 0 and limit or math.huge
end

-- A queue or a tenant as admission sees it. `kind`: "queue" or "tenant"; `limits` is models.QueueLimits or TenantLimits.
local function bound_of(kind, limits)
    local unit = kind .. ":" .. limits[1]
    local bound = {
        kind = kind,
        unit = unit,
        name = kind == "queue" and limits[1] or unit, -- of the fields that `drained` writes
        limit_tasks = no_limit(limits[2]),
        limit_bytes = no_limit(limits[3]),
        limit_wait_ms = limits[4],
        waiting_field = "waiting:" .. unit,
        bytes_field = "bytes:" .. unit,
        delayed_fields = { "scheduled:" .. unit, "retrying:" .. unit },
    }
    local f = redis.call("HMGET", usage_key, bound.waiting_field, bound.bytes_field, "drain_at:" .. bound.name,
        unpack(bound.delayed_fields))
    bound.waiting, bound.bytes, bound.measured = tonumber(f[1]) or 0, tonumber(f[2]) or 0, f[3]
    bound.delayed = (tonumber(f[4]) or 0) + (tonumber(f[5]) or 0)
    return bound
end

local function waiting_of(bound)
    return bound.waiting + (tallies[bound.waiting_field] or 0)
end

local function bytes_of(bound)
    return bound.bytes + (tallies[bound.bytes_field] or 0)
end

-- What of it could be claimed now.
local function queued_of(bound)
    local fields = bound.delayed_fields
    return waiting_of(bound) - bound.delayed - (tallies[fields[1]] or 0) - (tallies[fields[2]] or 0)
end

-- Whether the call found nothing queued: then a new window starts, since idle time says nothing about its speed.
local function is_idle(bound)
    return bound.waiting == bound.delayed
end

-- What was measured of it, read once a call: `rate` of the windows before, `seen` in this one of `span` ms.
local function pace_of(bound)
    if not bound.pace then
        local name = bound.name
        local f = redis.call("HMGET", usage_key, "drain_at:" .. name, "drain_n:" .. name, "drain_rate:" .. name,
            "room_at:" .. name)
        local span, left = math.max(0, now - (tonumber(f[1]) or now)), tonumber(f[2]) or 0 -- clocks step back, too
        bound.pace = { rate = tonumber(f[3]), span = span, left = left, seen = (left + 1) * 1000 / math.max(1000, span) }
        bound.room_at = tonumber(f[4]) or 0
    end
    return bound.pace
end

-- As Pace.leaving_per_s: what stands gets slower as it stands; nil: nothing has been measured yet.
local function leaving_per_s(pace)
    if not pace.rate then
        return pace.left > 0 and pace.span >= 1000 and pace.seen or nil
    end
    return pace.span > 2000 and math.min(pace.rate, pace.seen) or pace.rate
end

-- The name of the limit that one more task of `bytes` would pass, and how many tasks must leave before it would not;
-- nil: there is room.
local function full(bound, bytes)
    local waiting = waiting_of(bound)
    if waiting >= bound.limit_tasks then
        return bound.kind .. "-tasks", waiting - bound.limit_tasks + 1
    end
    local kept = bytes_of(bound)
    if kept + bytes > bound.limit_bytes then
        local excess = kept + bytes - bound.limit_bytes
        return bound.kind .. "-bytes", kept > 0 and math.ceil(excess * waiting / kept) or math.huge
    end
    if bound.limit_wait_ms > 0 then
        local pace = pace_of(bound)
        local per_s = pace.rate
        if not is_idle(bound) then
            per_s = leaving_per_s(pace)
        end
        local over = per_s and queued_of(bound) - bound.limit_wait_ms * per_s / 1000
        if over and over > 0 then
            return bound.kind .. "-wait", math.ceil(over)
        end
    end
    return nil
end

-- When that many tasks will have left.
local function room_in_ms(bound, over)
    local pace = pace_of(bound)
    return math.ceil(math.min(RETRY_CAP_MS, over * 1000 / (leaving_per_s(pace) or pace.seen)))
end

-- When a caller who was refused should come again: `over` tasks must leave before. Each refusal takes the next place in a
-- virtual row that moves at the measured drain rate, so that callers who obey come one by one.
local function retry_in_ms(bound, over)
    if waiting_of(bound) == 0 then
        return RETRY_CAP_MS -- one task alone is more than the limit: nothing that leaves makes room
    end
    local pace = pace_of(bound)
    local each = 1000 / (leaving_per_s(pace) or pace.seen)
    local step, from = each / ROW_HASTE, now + over * each
    if not pace.rate and pace.span < 1000 then -- nothing was measured yet: when the first window closes, something is
        step, from = UNMEASURED_STEP_MS, now + 1000 - pace.span
    end
    bound.room_at = math.min(now + RETRY_CAP_MS, math.max(from, bound.room_at + step))
    bound.row_moved = true
    return math.ceil(bound.room_at - now)
end

-- GCRA of a tenant's submissions. `ahead`: how far it is ahead of its rate, in ms (its TAT lies that long after now);
-- `row`: as `room_at`, in ms from now, in steps of its rate. nil: it has no rate.
local function rate_of(limits)
    local per_s, burst = limits[5], limits[6]
    if per_s == 0 then
        return nil
    end
    local key = prefix .. "rate:" .. limits[1]
    local at, ahead, row = string.match(redis.call("GET", key) or "", "^(%S+) (%S+) (%S+)$")
    local passed = at and math.max(0, now - tonumber(at)) or 0
    local step = 1000 / per_s
    return {
        key = key,
        step = step,
        burst = burst,
        allowed = (burst - 1) * step + step / 1e6, -- the last one is the noise of a float
        ahead = at and math.max(0, tonumber(ahead) - passed) or 0,
        row = at and tonumber(row) - passed or -step,
    }
end

-- When a submission over the rate should come again; nil: it is not over it.
local function too_fast(rate)
    if rate.ahead <= rate.allowed then
        return nil
    end
    rate.row = math.min(RETRY_CAP_MS, math.max(rate.ahead - rate.allowed, rate.row + rate.step / ROW_HASTE))
    rate.moved = true
    return math.ceil(rate.row)
end

-- Something was accepted.
local function admitted(bound)
    bound.starts = is_idle(bound) or not bound.measured
end

-- The limit that one more task of `bytes` would pass, whose it is, and how many tasks must leave before; nil: there is
-- room. `tenant` may be nil.
local function passed(queue, tenant, bytes)
    local bound = queue
    local limit, over = full(queue, bytes)
    if not limit and tenant then
        bound = tenant
        limit, over = full(tenant, bytes)
    end
    return limit, bound, over
end

-- What refuses a dead letter of `bytes` that is to be queued again: {"full", limit, retry_ms}, nil if nothing does.
local function refusal(queue, tenant, bytes)
    local limit, bound, over = passed(queue, tenant, bytes)
    return limit and { "full", limit, retry_in_ms(bound, over) }
end

-- A submission counts for its tenant's rate. nil: it has none.
local function count_submission(rate)
    if rate then
        rate.ahead = rate.ahead + rate.step
        rate.moved = true
    end
end

-- It is accepted.
local function admit(queue, tenant, rate)
    admitted(queue)
    if tenant then
        admitted(tenant)
    end
    count_submission(rate)
end

-- Write what the call has changed of it; what waits there now, in tasks and bytes. Before `settle`; nil: no limits.
local function close_bound(bound)
    if not bound then
        return 0, 0
    end
    local name = bound.name
    if bound.starts then
        redis.call("HSET", usage_key, "drain_at:" .. name, now, "drain_n:" .. name, 0)
    end
    if bound.row_moved then
        redis.call("HSET", usage_key, "room_at:" .. name, bound.room_at)
    end
    return waiting_of(bound), bytes_of(bound)
end

-- Write it; how many may come now, and in how many ms one more. nil: no rate.
local function close_rate(rate)
    if not rate then
        return 0, 0
    end
    if rate.moved then
        local life_ms = math.ceil(math.max(rate.ahead, rate.row)) + RETRY_CAP_MS
        redis.call("SET", rate.key, string.format("%d %.17g %.17g", now, rate.ahead, rate.row), "PX", life_ms)
    end
    local room = (rate.allowed - rate.ahead) / rate.step + 1
    local left = math.max(0, math.floor(room))
    return left, left < rate.burst and math.ceil((left + 1 - room) * rate.step) or 0
end

-- Every lane that a supervisor in `beats` says it serves, as a set of "queue:type".
local function served_lanes()
    local lanes = {}
    for _, worker in ipairs(redis.call("HKEYS", prefix .. "beats")) do
        local info = redis.call("HGET", prefix .. "worker:" .. worker, "info")
        local said = info and cjson.decode(info) or { queues = {}, types = {} }
        for _, name in ipairs(said.types) do
            for _, queue in ipairs(said.queues) do
                lanes[queue .. ":" .. string.match(name, "^[^:]+")] = true
            end
        end
    end
    return lanes
end
