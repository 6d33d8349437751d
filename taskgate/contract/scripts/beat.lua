#!lua flags=allow-oom
-- A supervisor lives: its counter grows, its tasks' liveness keys are renewed.
-- Replies {now, counter, {lost {id, epoch}...}, {unknown {id, epoch}...}, {canceling id...}, next_due, claimable, suspects,
-- {worker, "counter:lease_ms", ... of all}}.
local worker = ARGV[2] -- string
local lease_ms = tonumber(ARGV[3]) -- int
local info = ARGV[4] -- JSON   models.WorkerInfo
local held = cmsgpack.unpack(ARGV[5]) -- list   of {id, epoch}: all that the supervisor holds
local served = cmsgpack.unpack(ARGV[6]) -- list   of {queue, type, kind, concurrency}
local shares = ARGV[7] -- string as in claim.lua

local TENANTS_A_BEAT = 1000

local beats_key = prefix .. "beats"
local worker_key = prefix .. "worker:" .. worker

-- It starts at the time, so that a supervisor that was reaped and comes back never repeats a value somebody watches.
local counter = (tonumber(string.match(redis.call("HGET", beats_key, worker) or "", "^%d+")) or now) + 1
redis.call("HSET", beats_key, worker, string.format("%d:%d", counter, lease_ms))
redis.call("PUBLISH", prefix .. "notices", string.format("beat %s %s %d:%d", string.match(prefix, "{(%d+)}"), worker,
    counter, lease_ms))
redis.call("HSET", worker_key, "info", info, "beat", now)
redis.call("PEXPIRE", worker_key, math.max(60000, lease_ms * 10))

local lost, canceling, named = {}, {}, {}
for _, entry in ipairs(held) do
    local id, epoch = entry[1], entry[2]
    local f = redis.call("HMGET", prefix .. "task:" .. id, "worker", "epoch", "status")
    if f[1] == worker and tonumber(f[2]) == epoch and HELD[f[3]] then
        named[id] = true
        redis.call("SET", prefix .. "task:" .. id .. ":alive", 1, "PX", lease_ms)
        if f[3] == "canceling" then
            canceling[#canceling + 1] = id
        end
    else
        lost[#lost + 1] = { id, epoch }
    end
end

local unknown = {}
for _, id in ipairs(redis.call("SMEMBERS", prefix .. "held:" .. worker)) do
    if not named[id] then
        unknown[#unknown + 1] = { id, tonumber(redis.call("HGET", prefix .. "task:" .. id, "epoch")) or 0 }
    end
end

-- What has left its lanes for a limit that somebody has changed since would come back only when one of its tasks ends.
local function allow_again()
    for _, tenant in ipairs(redis.call("SRANDMEMBER", prefix .. "capped", TENANTS_A_BEAT)) do
        local _, most = share_of(shares, tenant)
        if most == 0 or (tonumber(redis.call("HGET", usage_key, "running:tenant:" .. tenant)) or 0) < most then
            readmit(tenant)
        end
    end
    for _, entry in ipairs(served) do
        local task_type, most = entry[2], entry[4]
        if redis.call("EXISTS", prefix .. "capped-type:" .. task_type) == 1 then
            if most == 0 or (tonumber(redis.call("HGET", usage_key, "running:type:" .. task_type)) or 0) < most then
                reopen(task_type)
            end
        end
    end
end

allow_again()
local claimable, suspects = 0, 0
for _, entry in ipairs(served) do
    local lanes_key = prefix .. "lanes:" .. entry[1]
    if claimable == 0 and redis.call("ZSCORE", lanes_key, entry[2]) then
        claimable = 1
    end
    if redis.call("ZSCORE", lanes_key, entry[2] .. ALONE) then
        suspects = 1
        break
    end
end

local next_due = redis.call("ZRANGE", prefix .. "due", 0, 0, "WITHSCORES")[2]
return { now, counter, lost, unknown, canceling, math.ceil(tonumber(next_due) or 0), claimable, suspects,
    redis.call("HGETALL", beats_key) }
