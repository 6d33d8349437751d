#!lua
-- Accept tasks: (nothing) -> queued | scheduled | failed (spilled: a limit of its queue or tenant was
-- reached); what one replaces: scheduled | queued | retrying -> canceled | expired (its time was over). All items lie in
-- this partition.
-- Replies {items, queues, tenants}. Per item {"ok"}, {"spilled"}, {"replay", task_id}, {"conflict"}, {"full", limit,
-- retry_ms}, {"wait", limit, retry_ms} (refused without a place in the virtual row: the caller looks again), or where
-- another live task has its unique key {"unique", task_id} (that one counts) or {"unique_conflict", task_id, status}.
-- Per queue {waiting, bytes}, per tenant {waiting, bytes, left, more_in_ms} (of its rate) after all of them.
local queue_limits = cmsgpack.unpack(ARGV[2]) -- list   of {queue, models.QueueLimits...}: those of all items
local tenant_limits = cmsgpack.unpack(ARGV[3]) -- list   of {tenant, models.TenantLimits...}: those that have any
local retention_ms = tonumber(ARGV[4]) -- int    of tasks that are replaced
local dead_retention_ms = tonumber(ARGV[5]) -- int    of tasks that are spilled
local items = cmsgpack.unpack(ARGV[6]) -- list   of models.Submission

-- What tenants' own limits may fill of a queue's room for spilled tasks: the rest is for those whom the queue refuses.
local TENANTS_PART = 0.5

local queues, tenants, rates = {}, {}, {}
for _, limits in ipairs(queue_limits) do
    local queue = bound_of("queue", limits)
    queue.on_full, queue.spill_tasks, queue.spill_bytes, queue.others_first = unpack(limits, 5, 8)
    queues[limits[1]] = queue
end
for _, limits in ipairs(tenant_limits) do
    tenants[limits[1]] = bound_of("tenant", limits)
    rates[limits[1]] = rate_of(limits)
end

local key_rates = {}

-- The rate of an API key, as submissions name it; nil: it has none.
local function key_rate_of(named)
    if named == "" then
        return nil
    end
    if not key_rates[named] then
        local id, per_s, burst = string.match(named, "^(%S+) (%S+) (%S+)$")
        key_rates[named] = rate_of({ "!" .. id, 0, 0, 0, tonumber(per_s), tonumber(burst) }) -- no tenant is called so
    end
    return key_rates[named]
end

-- What an earlier request with the same key led to; a key whose task is purged is free.
local function earlier(idem_key, fingerprint)
    local seen, task_id = string.match(redis.call("GET", idem_key) or "", "^(%S+) (%S+)$")
    if not seen or redis.call("EXISTS", prefix .. "task:" .. task_id) == 0 then
        return nil
    end
    return seen == fingerprint and { "replay", task_id } or { "conflict" }
end

local function keep_key(item)
    local id, tenant, key, fingerprint = item[1], item[4], item[11], item[12]
    if key ~= "" then
        redis.call("SET", prefix .. "idem:" .. tenant .. ":" .. key, fingerprint .. " " .. id, "PX", IDEMPOTENCY_MS)
        redis.call("HSET", prefix .. "task:" .. id, "idem", key)
    end
end

-- (nothing) -> failed: a dead letter that can be redriven; false: as many as may are there already. `part`: of the room
-- for such letters.
local function spill(item, queue, limit, part, bytes)
    local tasks_field, bytes_field = "spilled:" .. queue.unit, "spilled_bytes:" .. queue.unit
    if not queue.spilled then
        queue.spilled = redis.call("HMGET", usage_key, tasks_field, bytes_field)
    end
    local tasks = (tonumber(queue.spilled[1]) or 0) + (tallies[tasks_field] or 0)
    local kept = (tonumber(queue.spilled[2]) or 0) + (tallies[bytes_field] or 0)
    if tasks + 1 > part * queue.spill_tasks or kept + bytes > part * queue.spill_bytes then
        return false
    end
    tally(tasks_field, 1)
    tally(bytes_field, bytes)
    local fields = { "spilled", SPILLED, "error", '{"kind":"overflow","message":"it was not queued: ' .. limit
        .. ' was reached when it came","limit":"' .. limit .. '"}' }
    if item[13] ~= "" then
        fields[5], fields[6] = "unique", item[13] -- which it takes when it is redriven, not before
    end
    local delay_ms, run_at_ms, deadline_ms = unpack(item, 8, 10)
    for name, at in pairs({ due = math.max(now + delay_ms, run_at_ms), deadline = now + deadline_ms }) do
        if at > now then -- a redrive goes by it
            fields[#fields + 1], fields[#fields + 2] = name, at
        end
    end
    finish_record(item[1], create(item, "failed"), "failed", dead_retention_ms, 1, 0, ',"error":' .. fields[4], fields,
        bytes, false, SPILLED)
    keep_key(item)
    return true
end

-- What becomes of a task that would pass a limit, which `over` tasks must leave before.
local function turn_away(item, queue, rate, limit, bound, over, bytes)
    local part = bound == queue and 1 or TENANTS_PART
    if queue.on_full == "spill" and spill(item, queue, limit, part, bytes) then
        admit(nil, nil, rate, key_rate_of(item[17]))
        return { "spilled" }
    end
    if queue.on_full == "wait" and bytes <= bound.limit_bytes then
        if bound == queue and queue.others_first == "" then
            queue.others_first = limit
        end
        return { "wait", limit, room_in_ms(bound, over) }
    end
    return { "full", limit, retry_in_ms(bound, over) }
end

-- Count a waiting task in (by = 1) or out (by = -1). `was`: its status, place and bytes.
local function count(was, by)
    tally_waiting(was[2], tonumber(was[3]), by)
    tally_delayed(was[2], was[1], by)
end

-- As `passed`, once the task that it replaces has left (nil: none), which gives it its place; and others who wait for the
-- queue come first.
local function passed_by(item, queue, tenant, bytes, replaced)
    local was = replaced and redis.call("HMGET", prefix .. "task:" .. replaced, "status", "place", "bytes")
    if was then
        count(was, -1)
    end
    local limit, bound, over = passed(queue, tenant, bytes)
    local has_place = false
    if was then
        count(was, 1)
        has_place = place_parts(was[2]) == item[2] and bytes <= tonumber(was[3])
    end
    if not limit and queue.others_first ~= "" and not has_place then
        return queue.others_first, queue, 1
    end
    return limit, bound, over
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
    local taken, replaced = taken_by(item, retention_ms)
    if taken then
        if taken[1] == "unique" and key ~= "" then
            redis.call("SET", idem_key, fingerprint .. " " .. taken[2], "PX", IDEMPOTENCY_MS)
        end
        return taken
    end
    local in_queue, of_tenant, rate, bytes = queues[queue], tenants[tenant], rates[tenant], #payload + TASK_BYTES
    local key_rate = key_rate_of(item[17])
    local key_retry_ms = key_rate and rate_refusal_ms(key_rate)
    if key_retry_ms then
        return { "full", "rate-key", key_retry_ms }
    end
    local retry_ms = rate and rate_refusal_ms(rate)
    if retry_ms then
        return { "full", "rate", retry_ms }
    end
    local limit, bound, over = passed_by(item, in_queue, of_tenant, bytes, replaced)
    if limit then
        return turn_away(item, in_queue, rate, limit, bound, over, bytes)
    end
    admit(in_queue, of_tenant, rate, key_rate)
    if replaced then
        replace(replaced, id, retention_ms)
    end
    accept(item)
    keep_key(item)
    return { "ok" }
end

local replies = {}
for i, item in ipairs(items) do
    replies[i] = submit(item)
end
for i, limits in ipairs(queue_limits) do
    queue_limits[i] = { close_bound(queues[limits[1]]) }
end
for i, limits in ipairs(tenant_limits) do
    local waiting, bytes = close_bound(tenants[limits[1]])
    tenant_limits[i] = { waiting, bytes, close_rate(rates[limits[1]]) }
end
for _, rate in pairs(key_rates) do
    close_rate(rate)
end
settle()
return { replies, queue_limits, tenant_limits }
