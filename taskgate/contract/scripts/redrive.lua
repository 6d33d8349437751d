#!lua
-- Give dead letters a fresh set of attempts: failed -> queued | scheduled. Their events and their history are kept. What
-- has the unique key of one and can never start any more: scheduled | queued | retrying -> expired.
-- One that was spilled keeps its start time and its start deadline, since it never began.
-- Replies per id {"ok"}, {"not_found"}, {"not_dead", status}, {"deadline_passed"}, {"full", limit, retry_ms} or, where
-- another live task has its unique key, {"unique_conflict", task_id, status}.
local tenant = ARGV[2] -- string whose tasks they must be; "" is anybody's
local request_id = ARGV[3] -- string a repeat of the same request answers ok
local before_ms = tonumber(ARGV[4]) -- int    only what failed before then: not what has failed again since; 0: any
local first_ms = tonumber(ARGV[5]) -- int    when the first of them starts; 0: all at once
local step_us = tonumber(ARGV[6]) -- int    from one start to the next
local queue_limits = cmsgpack.unpack(ARGV[7]) -- list   of {queue, models.QueueLimits...}: those of all of them
local tenant_limits = cmsgpack.unpack(ARGV[8]) -- list   of {tenant, models.TenantLimits...}: those that have any
local retention_ms = tonumber(ARGV[9]) -- int    of what expires
local ids = cmsgpack.unpack(ARGV[10]) -- list   of task ids

local queues, tenants = {}, {}
for _, limits in ipairs(queue_limits) do
    queues[limits[1]] = bound_of("queue", limits)
end
for _, limits in ipairs(tenant_limits) do
    tenants[limits[1]] = bound_of("tenant", limits)
end

local refusals = {}

-- What refuses a letter of `bytes`: {"full", limit, retry_ms}; nil: nothing does. All letters of a call together take
-- one place in the virtual row.
local function refusal(queue, owner, bytes)
    local limit, bound, over = passed(queues[queue], tenants[owner], bytes)
    if not limit then
        return nil
    end
    local name = queue .. ":" .. owner
    refusals[name] = refusals[name] or { "full", limit, retry_in_ms(bound, over) }
    return refusals[name]
end

local started = 0

-- Put it where tasks wait: in its old place or, where its start is due later (of itself or at a rate), until then.
local function wait_again(id, key, place, score, ckey, due, deadline)
    local start = math.max(first_ms + math.floor(started * step_us / 1000), due or 0)
    started = started + 1
    if start > now then
        redis.call("HSET", key, "status", "scheduled", "due", start)
        set_due(id, math.min(start, deadline or start))
        return "scheduled"
    end
    redis.call("HSET", key, "status", "queued")
    enqueue(id, place, score, ckey)
    if deadline then
        set_due(id, deadline)
    end
    return "queued"
end

local function redrive(id)
    local key = prefix .. "task:" .. id
    local f = redis.call("HMGET", key, "status", "place", "version", "score", "bytes", "redriven", "unique", "worker",
        "error", "finished", "epoch", "ckey", "spilled", "due", "deadline")
    local status, place, unique = f[1], f[2], f[7]
    local due, deadline = f[13] and tonumber(f[14]), f[13] and tonumber(f[15])
    if not status then
        return { "not_found" }
    end
    local queue, _, owner = place_parts(place)
    if tenant ~= "" and owner ~= tenant then
        return { "not_found" }
    end
    if f[6] == request_id then
        return { "ok" }
    end
    if status ~= "failed" or (before_ms > 0 and tonumber(f[10]) >= before_ms) then
        return { "not_dead", status }
    end
    if deadline and deadline <= now then
        return { "deadline_passed" }
    end
    if unique then
        local holder, holder_status = holder_of(owner, unique)
        if holder and not (WAITING[holder_status] and expire_overdue(holder, holder_status, retention_ms)) then
            return { "unique_conflict", holder, holder_status }
        end
    end
    local version, bytes = tonumber(f[3]) + 1, tonumber(f[5])
    local refused = refusal(queue, owner, bytes)
    if refused then
        return refused
    end
    admit(queues[queue], tenants[owner], nil)
    leave_final(member_of(key, queue, owner, id))
    leave_letters(queue, owner, id)
    if f[8] and f[8] ~= "" then -- else no attempt ended it
        remember(key, f[9] or "", f[10])
    end
    -- An epoch of 1 is that of a first claim, which comes right after the submission.
    redis.call("HSET", key, "version", version, "attempt", 0, "worker", "", "redriven", request_id, "redriven_at", now,
        "epoch", math.max(1, tonumber(f[11])))
    redis.call("HDEL", key, "finished", "purge", "started", "met", "error", "spilled", "due")
    if not deadline then
        redis.call("HDEL", key, "deadline")
    end
    for _, part in ipairs({ "", ":events", ":logs", ":attempts" }) do
        redis.call("PERSIST", key .. part)
    end
    if unique then
        take_unique(id, owner, unique)
    end
    local waits = wait_again(id, key, place, f[4], f[12], due, deadline)
    tally_waiting(place, bytes, 1)
    tally_delayed(place, waits, 1)
    tell_status(id, version, waits, 0, ',"reason":"redrive"')
    return { "ok" }
end

local replies = {}
for i, id in ipairs(ids) do
    replies[i] = redrive(id)
end
for _, limits in ipairs(queue_limits) do
    close_bound(queues[limits[1]])
end
for _, limits in ipairs(tenant_limits) do
    close_bound(tenants[limits[1]])
end
settle()
return replies
