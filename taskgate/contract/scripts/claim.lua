#!lua flags=allow-oom
-- Take tasks for a supervisor's free slots: queued -> running; queued -> expired past the deadline.
-- Replies {"no_worker"} or {"ok", now, {id, epoch, attempt, created, spec, payload, checkpoint, neighbours}...}.
-- Never repeated: a lost reply shows as `unknown` in the beats that follow.
local worker = ARGV[2] -- string
local lease_ms = tonumber(ARGV[3]) -- int    how long observers take them for alive without a beat
local free_sync = tonumber(ARGV[4]) -- int    free slots for sync tasks
local free_async = tonumber(ARGV[5]) -- int    free slots for async tasks
local free_alone = tonumber(ARGV[6]) -- int    free slots for async tasks that must run alone
local max_bytes = tonumber(ARGV[7]) -- int    payload bytes of one claim; at least one task is taken
local retention_ms = tonumber(ARGV[8]) -- int    of tasks that turn out expired
local served = cmsgpack.unpack(ARGV[9]) -- list   of {queue, type, kind}, in the order queues are served

if redis.call("HEXISTS", prefix .. "beats", worker) == 0 then
    return { "no_worker" }
end

local EXPIRED_A_CALL = 128 -- the rest is for the next call: no script may run long
local TASKS_A_CALL = 2000 -- of each kind, likewise: all of them must fit into one `unpack`, which ends below 8,000
local free = {
    sync = math.min(free_sync, TASKS_A_CALL),
    async = math.min(free_async, TASKS_A_CALL),
    alone = math.min(free_alone, TASKS_A_CALL),
}
local taken, bytes_taken, expired = {}, 0, 0
local left = {} -- as `drained` counts
local held = {}
changes, versions = {}, {}

local function start(id)
    local key = prefix .. "task:" .. id
    local f = redis.call("HMGET", key, "version", "attempt", "epoch", "place", "bytes", "created", "spec", "payload",
        "deadline")
    local version, attempt, epoch, place = tonumber(f[1]) + 1, tonumber(f[2]), tonumber(f[3]) + 1, f[4]
    local payload, deadline = f[8], tonumber(f[9])
    local before = {}
    if epoch > 1 then
        before = redis.call("HMGET", key, "checkpoint", "met", "neighbours")
    end
    tally_waiting(place, tonumber(f[5]), -1)
    if deadline then
        clear_due(id)
        if not before[2] and now >= deadline then
            finish_record(id, place, "expired", retention_ms, version, attempt, "")
            expired = expired + 1
            return false
        end
    end
    attempt = attempt + 1
    if epoch > 1 then
        redis.call("HDEL", key, "progress", "effort", "health") -- of the attempt before
    end
    redis.call("HSET", key, "status", "running", "version", version, "attempt", attempt, "epoch", epoch,
        "worker", worker, "started", now, "lease", lease_ms)
    held[#held + 1] = id
    tally_running(place, 1)
    local unit = parts_of(place)[9]
    left[unit] = (left[unit] or 0) + 1
    tell_status(id, version, "running", attempt, ',"worker":"' .. worker .. '"')
    bytes_taken = bytes_taken + #payload
    taken[#taken + 1] = { id, epoch, attempt, tonumber(f[6]), f[7], payload, before[1] or "", tonumber(before[3]) or 0 }
    return true
end

-- The lane's tenant of the lowest virtual time has its turn until the time of the next one.
local function begin_turn(lane)
    local order = redis.call("ZRANGE", lane.key, 0, 1, "WITHSCORES")
    lane.tenant, lane.tenant_time, lane.until_time = order[1], tonumber(order[2]), tonumber(order[4]) or math.huge
    lane.empty = not lane.tenant
    lane.place = lane.tenant and lane.queue .. ":" .. lane.type .. ":" .. lane.tenant
end

local function end_turn(lane)
    if lane.tenant then
        redis.call("ZADD", lane.key, lane.tenant_time, lane.tenant)
        leave_if_empty(lane.place)
        lane.tenant = nil
    end
end

-- Take the next task of a lane: tenant of the lowest virtual time, lowest score within it.
local function take(lane)
    if not lane.tenant then
        begin_turn(lane)
    end
    local id = lane.tenant and redis.call("ZPOPMIN", prefix .. "ready:" .. lane.place)[1]
    if id and start(id) then
        free[lane.kind] = free[lane.kind] - 1
        lane.time = lane.time + 1
        lane.tenant_time = lane.tenant_time + 1
    end
    if not id or lane.tenant_time >= lane.until_time then
        end_turn(lane)
    end
end

-- The lane of the lowest virtual time that has tasks and free slots.
local function next_lane(lanes)
    local best
    for _, lane in ipairs(lanes) do
        if not lane.empty and free[lane.kind] > 0 and (not best or lane.time < best.time) then
            best = lane
        end
    end
    return best
end

-- New lanes start at the minimum of those that compete with them.
local function seat(lanes)
    local least = {}
    for _, lane in ipairs(lanes) do
        if lane.before ~= NEW then
            least[lane.kind] = math.min(lane.before, least[lane.kind] or math.huge)
        end
    end
    for _, lane in ipairs(lanes) do
        if lane.before == NEW then
            lane.time = least[lane.kind] or 0
        end
    end
end

-- Which slots a lane's tasks need, nil where its type is not served. A sync task is alone in its child anyway.
local function kind_of(lane_type, kinds)
    local task_type = type_of(lane_type)
    local kind = kinds[task_type]
    return task_type ~= lane_type and kind == "async" and "alone" or kind
end

local function claim_from(queue, kinds)
    local lanes_key = prefix .. "lanes:" .. queue
    local order = redis.call("ZRANGE", lanes_key, 0, -1, "WITHSCORES")
    local lanes = {}
    for i = 1, #order, 2 do
        local kind = kind_of(order[i], kinds)
        if kind then
            lanes[#lanes + 1] = {
                type = order[i],
                kind = kind,
                before = tonumber(order[i + 1]),
                time = tonumber(order[i + 1]),
                queue = queue,
                key = prefix .. "lane:" .. queue .. ":" .. order[i],
            }
        end
    end
    seat(lanes)
    local before = #taken
    local lane = next_lane(lanes)
    while lane and bytes_taken < max_bytes and expired < EXPIRED_A_CALL do
        take(lane)
        lane = next_lane(lanes)
    end
    for _, each in ipairs(lanes) do
        end_turn(each)
        if redis.call("EXISTS", each.key) == 1 then
            if each.time ~= each.before then
                redis.call("ZADD", lanes_key, each.time, each.type)
            end
            wake(queue, each.type)
        end
    end
    if #taken > before then
        left[queue] = #taken - before
    end
end

local queues, kinds = {}, {}
for _, entry in ipairs(served) do
    local queue, task_type, kind = entry[1], entry[2], entry[3]
    if not kinds[queue] then
        kinds[queue] = {}
        queues[#queues + 1] = queue
    end
    kinds[queue][task_type] = kind
end
for _, queue in ipairs(queues) do
    claim_from(queue, kinds[queue])
end
if #held > 0 then
    redis.call("SADD", prefix .. "held:" .. worker, unpack(held))
    drained(left)
end
settle()
wake_watchers()
return { "ok", now, taken }
