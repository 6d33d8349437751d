#!lua
-- Accept tasks: (nothing) -> queued | scheduled; what one replaces: scheduled | queued | retrying -> canceled.
-- All items lie in this partition.
-- Replies {items, queues, tenants}. Per item {"ok"}, {"replay", task_id}, {"conflict"}, {"full", limit, retry_ms}, or
-- where another live task has its unique key {"unique", task_id} (that one counts) or {"unique_conflict", task_id, status}.
-- Per queue {waiting, bytes}, per tenant {waiting, bytes, left, more_in_ms} (of its rate) after all of them.
local queue_limits = cmsgpack.unpack(ARGV[2]) -- list   of {queue, models.QueueLimits...}: those of all items
local tenant_limits = cmsgpack.unpack(ARGV[3]) -- list   of {tenant, models.TenantLimits...}: those that have any
local retention_ms = tonumber(ARGV[4]) -- int    of tasks that are replaced
local items = cmsgpack.unpack(ARGV[5]) -- list   of models.Submission

local queues, tenants, rates = {}, {}, {}
for _, limits in ipairs(queue_limits) do
    queues[limits[1]] = bound_of("queue", limits)
end
for _, limits in ipairs(tenant_limits) do
    tenants[limits[1]] = bound_of("tenant", limits)
    rates[limits[1]] = rate_of(limits)
end

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
    local taken, replaced = taken_by(item)
    if taken then
        if taken[1] == "unique" and key ~= "" then
            redis.call("SET", idem_key, fingerprint .. " " .. taken[2], "PX", IDEMPOTENCY_MS)
        end
        return taken
    end
    local refused = refusal(queues[queue], tenants[tenant], rates[tenant], #payload + TASK_BYTES)
    if refused then
        return refused
    end
    admit(queues[queue], tenants[tenant], rates[tenant])
    if replaced then
        replace(replaced, id, retention_ms)
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
for i, limits in ipairs(queue_limits) do
    queue_limits[i] = { close_bound(queues[limits[1]]) }
end
for i, limits in ipairs(tenant_limits) do
    local waiting, bytes = close_bound(tenants[limits[1]])
    tenant_limits[i] = { waiting, bytes, close_rate(rates[limits[1]]) }
end
settle()
return { replies, queue_limits, tenant_limits }
