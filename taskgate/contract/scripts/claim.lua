#!lua flags=allow-oom
-- Take tasks for a supervisor's free slots: queued -> running; queued -> expired past the deadline.
-- Replies {"no_worker"} or {"ok", now, {id, epoch, attempt, created, spec, payload, checkpoint, neighbours}..., fresh}; fresh:
-- 1 when tasks that need a fresh process wait for a slot that they can use.
-- Never repeated: a lost reply shows as `unknown` in the beats that follow.
local worker = ARGV[2] -- string
local lease_ms = tonumber(ARGV[3]) -- int    how long observers take them for alive without a beat
local free_sync = tonumber(ARGV[4]) -- int    free slots for sync tasks
local free_fresh = tonumber(ARGV[5]) -- int    children for tasks that need a fresh process
local fresh_takes = tonumber(ARGV[6]) -- int    slots for sync tasks that such a task takes
local free_async = tonumber(ARGV[7]) -- int    free slots for async tasks
local free_alone = tonumber(ARGV[8]) -- int    free slots for async tasks that must run alone
local max_bytes = tonumber(ARGV[9]) -- int    payload bytes of one claim; at least one task is taken
local retention_ms = tonumber(ARGV[10]) -- int    of tasks that turn out expired
local shares = ARGV[11] -- string lines of tenant, weight and concurrency, as prelude/lanes.lua `share_of` reads them
local served = cmsgpack.unpack(ARGV[12]) -- list   of {queue, type, kind, concurrency}; queues begin in the order in which they come, for each kind of slots

if redis.call("HEXISTS", prefix .. "beats", worker) == 0 then
    return { "no_worker" }
end

local EXPIRED_A_CALL = 128 -- the rest is for the next call: no script may run long
local TASKS_A_CALL = 2000 -- of each kind, likewise: all of them must fit into one `unpack`, which ends below 8,000
local free = {
    sync = math.min(free_sync, TASKS_A_CALL),
    fresh = math.min(free_fresh, TASKS_A_CALL),
    async = math.min(free_async, TASKS_A_CALL),
    alone = math.min(free_alone, TASKS_A_CALL),
}
local SLOTS = { sync = { "sync" }, fresh = { "sync" }, async = { "async", "alone" } } -- that tasks of a kind may need
local taken, bytes_taken, expired = {}, 0, 0
local left = {} -- as `drained` counts
local held = {}
changes, versions = {}, {}

local function start(id)
    local key = prefix .. "task:" .. id
    local f = redis.call("HMGET", key, "version", "attempt", "epoch", "place", "bytes", "created", "spec", "payload",
        "deadline", "ckey")
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
            if f[10] then
                give_place(id, place, f[10])
            end
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

local counted = {}

-- A counter of `usage`, as of now.
local function running_now(field)
    counted[field] = counted[field] or tonumber(redis.call("HGET", usage_key, field)) or 0
    return counted[field] + (tallies[field] or 0)
end

local costs, mosts = {}, {}

local function is_full(tenant)
    if not costs[tenant] then
        costs[tenant], mosts[tenant] = share_of(shares, tenant)
    end
    return mosts[tenant] > 0 and running_now("running:tenant:" .. tenant) >= mosts[tenant]
end

local function is_closed(lane)
    return lane.most > 0 and running_now("running:type:" .. lane.task_type) >= lane.most
end

local function has_slot(kind)
    return free[kind] > 0 and (kind ~= "fresh" or free.sync >= fresh_takes)
end

-- The lane's tenant of the lowest virtual time that may run more has its turn until the time of the next one.
local function begin_turn(lane)
    repeat
        local order = redis.call("ZRANGE", lane.key, 0, 1, "WITHSCORES")
        local tenant = order[1]
        lane.empty = not tenant
        lane.place = tenant and lane.queue .. ":" .. lane.type .. ":" .. tenant
        lane.tenant, lane.tenant_time, lane.until_time = tenant, tonumber(order[2]), tonumber(order[4]) or math.huge
        local full = tenant and is_full(tenant)
        if full then
            step_aside(lane.place, lane.tenant_time)
        end
    until not full
end

local function end_turn(lane)
    if not lane.tenant then
        return
    end
    local leaves, gone = leave_if_empty(lane.place, lane.tenant_time)
    if not leaves and is_full(lane.tenant) then
        leaves, gone = true, step_aside(lane.place, lane.tenant_time)
    end
    if leaves then
        lane.left = true
    else
        redis.call("ZADD", lane.key, lane.tenant_time, lane.tenant)
    end
    if gone then
        lane.last_time = nil -- an expired task may let another in: that lane is a new one
    end
    lane.tenant = nil
end

-- Take the next task of a lane: tenant of the lowest virtual time, lowest score within it.
local function take(lane)
    if lane.tenant and is_full(lane.tenant) then -- by what another lane took
        end_turn(lane)
    end
    if not lane.tenant then
        begin_turn(lane)
    end
    if not lane.tenant then
        return
    end
    local id = redis.call("ZPOPMIN", prefix .. "ready:" .. lane.place)[1]
    if id and start(id) then
        free[lane.kind] = free[lane.kind] - 1
        if lane.kind == "fresh" then
            free.sync = free.sync - fresh_takes
        end
        lane.time = lane.time + 1
        lane.last_time = lane.tenant_time
        lane.tenant_time = lane.tenant_time + costs[lane.tenant]
        left[lane.queue] = (left[lane.queue] or 0) + 1
    end
    if not id or lane.tenant_time >= lane.until_time or is_full(lane.tenant) then
        end_turn(lane)
    end
end

-- The lane of the lowest virtual time that has tasks, free slots, and a type that may run more.
local function next_lane(lanes)
    local best
    for _, lane in ipairs(lanes) do
        if not lane.empty and has_slot(lane.kind) and (not best or lane.time < best.time) and not is_closed(lane) then
            best = lane
        end
    end
    return best
end

-- New lanes start at the minimum of those that compete with them; one that was there just before, where it has left.
local function seat(lanes, turns_key)
    local least, least_open = {}, {}
    for _, lane in ipairs(lanes) do
        if lane.before ~= NEW then
            least[lane.slots] = math.min(lane.before, least[lane.slots] or math.huge)
            if not is_closed(lane) and (lane.kind ~= "fresh" or free.fresh > 0) then
                least_open[lane.slots] = math.min(lane.before, least_open[lane.slots] or math.huge)
            end
        end
    end
    for _, lane in ipairs(lanes) do
        if lane.before == NEW then
            local from = least_open[lane.slots] or least[lane.slots]
            local left = from and tonumber(redis.call("ZSCORE", turns_key, lane.type)) or 0
            lane.time = from and math.min(math.max(from, left), from + 1) or 0
        end
    end
end

-- Lanes that could not be served while others were gain nothing by that, but the next turn.
local function keep_up(lanes)
    local least = {}
    for _, lane in ipairs(lanes) do
        if lane.waits and not lane.passed then
            least[lane.slots] = math.min(lane.time, least[lane.slots] or math.huge)
        end
    end
    for _, lane in ipairs(lanes) do
        if lane.passed and least[lane.slots] then
            lane.time = math.max(lane.time, least[lane.slots] - 0.5)
        end
    end
end

-- Write down how far a lane has come, and see to it that somebody is told of what waits there.
local function note(lane, queue)
    if lane.time ~= lane.before then
        redis.call("ZADD", prefix .. "lanes:" .. queue, lane.time, lane.type)
    end
    if lane.last_time then
        local turns_key = prefix .. "turns:" .. queue .. ":" .. lane.type
        redis.call("ZADD", turns_key, lane.last_time, "")
        if lane.left then -- who left with no more than that owes nothing
            redis.call("ZREMRANGEBYSCORE", turns_key, "-inf", "(" .. string.format("%.17g", lane.last_time))
        end
    end
    if is_closed(lane) then
        local wake_key = prefix .. "wake:" .. queue .. ":" .. lane.type
        redis.call("DEL", wake_key)
        woken[wake_key] = nil
        redis.call("SADD", prefix .. "capped-type:" .. lane.task_type, queue .. ":" .. lane.type)
    else
        wake(queue, lane.type)
    end
end

-- Which slots a lane's tasks need, nil where its type is not served. A sync task is alone in its child anyway.
local function kind_of(lane_type, task_type, kinds)
    local kind = kinds[task_type]
    return task_type ~= lane_type and kind == "async" and "alone" or kind
end

local function lanes_of(queue, kinds, mosts_of)
    local order = redis.call("ZRANGE", prefix .. "lanes:" .. queue, 0, -1, "WITHSCORES")
    local lanes = {}
    for i = 1, #order, 2 do
        local task_type = type_of(order[i])
        local kind = kind_of(order[i], task_type, kinds)
        if kind then
            lanes[#lanes + 1] = {
                type = order[i],
                task_type = task_type,
                kind = kind,
                slots = kind == "fresh" and "sync" or kind,
                most = mosts_of[task_type],
                before = tonumber(order[i + 1]),
                time = tonumber(order[i + 1]),
                queue = queue,
                key = prefix .. "lane:" .. queue .. ":" .. order[i],
            }
        end
    end
    return lanes
end

-- A task of a row: the lanes of one queue that compete for the same slots. Whether it had one that fits.
local function take_one(row)
    local before = #taken
    local lane = next_lane(row)
    while lane and #taken == before and expired < EXPIRED_A_CALL do
        take(lane)
        lane = next_lane(row)
    end
    return #taken > before
end

-- Queues take turns: every row has one task after the other, until nothing fits.
local function take_turns(rows)
    while #rows > 0 do
        local rest = {}
        for _, row in ipairs(rows) do
            if bytes_taken < max_bytes and expired < EXPIRED_A_CALL and take_one(row) then
                rest[#rest + 1] = row
            end
        end
        rows = rest
    end
end

local fresh_waits = 0

-- Write down what has become of a queue's lanes.
local function close(queue, lanes)
    local some_wait = false
    for _, each in ipairs(lanes) do
        end_turn(each)
        each.waits = redis.call("EXISTS", each.key) == 1
        each.passed = each.waits and (is_closed(each) or each.kind == "fresh" and not has_slot("fresh"))
        some_wait = some_wait or each.waits
        if each.passed and not is_closed(each) then
            fresh_waits = 1
        end
    end
    keep_up(lanes)
    for _, each in ipairs(lanes) do
        if each.waits then
            note(each, queue)
        elseif some_wait then
            redis.call("ZADD", prefix .. "turns:" .. queue, each.time, each.type)
        end
    end
end

local queues, kinds, mosts_of = {}, {}, {}
for _, entry in ipairs(served) do
    local queue, task_type, kind = entry[1], entry[2], entry[3]
    if not kinds[queue] then
        kinds[queue] = {}
        queues[#queues + 1] = queue
    end
    kinds[queue][task_type], mosts_of[task_type] = kind, entry[4]
end
local lanes_by_queue, rows_by_slots = {}, {}
for _, queue in ipairs(queues) do
    local lanes = lanes_of(queue, kinds[queue], mosts_of)
    seat(lanes, prefix .. "turns:" .. queue)
    lanes_by_queue[queue] = lanes
    for _, lane in ipairs(lanes) do
        local name = lane.slots .. ":" .. queue
        rows_by_slots[name] = rows_by_slots[name] or {}
        table.insert(rows_by_slots[name], lane)
    end
end
local rows = {}
for _, entry in ipairs(served) do
    for _, slots in ipairs(SLOTS[entry[3]]) do
        local name = slots .. ":" .. entry[1]
        rows[#rows + 1] = rows_by_slots[name]
        rows_by_slots[name] = nil
    end
end
take_turns(rows)
for _, queue in ipairs(queues) do
    close(queue, lanes_by_queue[queue])
end
if #held > 0 then
    redis.call("SADD", prefix .. "held:" .. worker, unpack(held))
    drained(left)
end
settle()
wake_watchers()
return { "ok", now, taken, fresh_waits }
