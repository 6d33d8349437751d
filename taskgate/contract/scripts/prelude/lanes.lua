-- The fair orders: lanes and tenants, limits on what runs, concurrency keys, and what is due.
local NEW = -1 -- virtual time of a lane that no claim has seen yet
local BEHIND = 1 / 8 -- so much virtual time is a newcomer behind whoever had the last turn: next, but not without end before others
local PLACES_COMPARED = 64 -- of a concurrency key; where more are taken, a newcomer waits whatever its priority

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

-- Of a concurrency key's tasks that are ready: the one that would be claimed last, its score and its place; nil: all of
-- them run, or they are too many to look at.
local function last_ready(places_key)
    local last, last_score, last_place
    if redis.call("SCARD", places_key) > PLACES_COMPARED then
        return nil
    end
    for _, id in ipairs(redis.call("SMEMBERS", places_key)) do
        local f = redis.call("HMGET", prefix .. "task:" .. id, "status", "score", "place")
        local score = tonumber(f[2])
        if f[1] == "queued" and (not last or score > last_score or score == last_score and id > last) then
            last, last_score, last_place = id, score, f[3]
        end
    end
    return last, last_score, last_place
end

-- Whether a task of a concurrency key has one of its places: it takes a free one, or that of a ready task that comes
-- after it, which then waits in its stead. Also the place (queue, type, tenant) where such a one was ready.
local function take_place(id, place, score, ckey)
    local places_key, blocked_key, most = key_of(place, ckey)
    if redis.call("SISMEMBER", places_key, id) == 1 then
        return true
    end
    if redis.call("SCARD", places_key) < most then
        redis.call("SADD", places_key, id)
        return true
    end
    local first_score = tonumber(redis.call("ZRANGE", blocked_key, 0, 0, "WITHSCORES")[2])
    if first_score and first_score <= score then
        return false -- and it comes after all that have a place, so the newcomer does, too
    end
    local last, last_score, last_place = last_ready(places_key)
    if not last or last_score <= score then
        return false
    end
    redis.call("SREM", places_key, last)
    redis.call("SADD", places_key, id)
    redis.call("ZREM", prefix .. "ready:" .. last_place, last)
    redis.call("ZADD", blocked_key, last_score, last)
    return true, last_place
end

-- What is ready at a place may be claimed.
local function show(place)
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

-- Queue a task; without a place of its concurrency key (`ckey`: the record's field, false for none) it waits for one.
local function enqueue(id, place, score, ckey)
    local has_place, left = true, nil
    if ckey then
        has_place, left = take_place(id, place, tonumber(score), ckey)
    end
    if not has_place then
        redis.call("ZADD", select(2, key_of(place, ckey)), score, id)
        return
    end
    redis.call("ZADD", prefix .. "ready:" .. place, score, id)
    show(place)
    if left then
        leave_if_empty(left)
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

-- Forget the lanes that a limit has closed for a tenant or type: their queues and lane types.
local function take_lanes(key)
    local lanes = redis.call("SMEMBERS", key)
    redis.call("DEL", key)
    for i, lane in ipairs(lanes) do
        lanes[i] = { string.match(lane, "^([^:]+):(.+)$") }
    end
    return lanes
end

-- The lanes that a tenant has left for its limit have it back; the next claim sees whether it may.
local function readmit(tenant)
    redis.call("SREM", prefix .. "capped", tenant)
    for _, lane in ipairs(take_lanes(prefix .. "capped:" .. tenant)) do
        enter(lane[1], lane[2], tenant)
    end
end

-- Supervisors may look for tasks of a type again that was at its limit.
local function reopen(task_type)
    for _, lane in ipairs(take_lanes(prefix .. "capped-type:" .. task_type)) do
        if redis.call("EXISTS", prefix .. "lane:" .. lane[1] .. ":" .. lane[2]) == 1 then
            wake(lane[1], lane[2])
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
