-- What may wait: limits of queues and tenants, their measured speed, rates, and when to come again.
local RETRY_CAP_MS = 60000
local ROW_HASTE = 1.1 -- refused callers come 0 to 20 % later than they are told here, and no room shall be left over
local ROW_REST_MS = 1000 -- and two steps: who obeys comes in whole seconds, so when nobody came for longer the row is empty
local UNMEASURED_STEP_MS = 10 -- between refused callers while nobody knows a queue's speed: else all come again at once

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

local function pace_in(rate, span, left)
    return { rate = rate, span = span, left = left, seen = (left + 1) * 1000 / math.max(1000, span) }
end

-- What was measured of it, read once a call: `rate` of the windows before, `seen` in this one of `span` ms.
local function pace_of(bound)
    if not bound.pace then
        local name = bound.name
        local f = redis.call("HMGET", usage_key, "drain_at:" .. name, "drain_n:" .. name, "drain_rate:" .. name,
            "room_at:" .. name)
        local span, left = math.max(0, now - (tonumber(f[1]) or now)), tonumber(f[2]) or 0 -- clocks step back, too
        if bound.starts then
            span, left = 0, 0
        end
        bound.pace, bound.room_at = pace_in(tonumber(f[3]), span, left), tonumber(f[4]) or 0
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

-- The name of the limit that one more task of `bytes` would pass, and how many tasks must leave before it would not
-- (huge: it alone is more); nil: there is room.
local function full(bound, bytes)
    local waiting = waiting_of(bound)
    if waiting >= bound.limit_tasks then
        return bound.kind .. "-tasks", waiting - bound.limit_tasks + 1
    end
    local kept = bytes_of(bound)
    if kept + bytes > bound.limit_bytes then
        local excess = kept + bytes - bound.limit_bytes
        return bound.kind .. "-bytes", bytes > bound.limit_bytes and math.huge or math.ceil(excess * waiting / kept)
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
    if over == math.huge then
        return RETRY_CAP_MS -- nothing that leaves makes room
    end
    local pace = pace_of(bound)
    local each = 1000 / (leaving_per_s(pace) or pace.seen)
    local step, from = each / ROW_HASTE, now + over * each
    if not pace.rate and pace.span < 1000 then -- nothing was measured yet: when the first window closes, something is
        step, from = UNMEASURED_STEP_MS, now + 1000 - pace.span
    end
    bound.room_at = math.min(now + RETRY_CAP_MS, math.max(from, bound.room_at + step))
    bound.row_moved = waiting_of(bound) > 0 -- it goes with the last task, so without one it would stay
    return math.ceil(bound.room_at - now)
end

-- A new window starts with what is accepted now. When nothing was queued for long, nobody is in the row any more.
local function start_window(bound)
    local idle_ms = now - (tonumber(bound.measured) or now) - 1000 -- at least: the last one may have left with its window
    if idle_ms > ROW_REST_MS and idle_ms > ROW_REST_MS + 2000 / (pace_of(bound).rate or math.huge) then
        bound.room_at, bound.row_ended = 0, true
    end
    bound.starts = true
    bound.pace = bound.pace and pace_in(bound.pace.rate, 0, 0)
end

-- GCRA of a tenant's submissions, or a key's, counted in submissions, so that another rate holds at once. `ahead`: how many it is ahead
-- of its rate (its TAT lies that many steps after now); `row`: as `room_at`, in steps from now. nil: it has no rate.
local function rate_of(limits)
    local per_s, burst = limits[5], limits[6]
    if per_s == 0 then
        return nil
    end
    local key = prefix .. "rate:" .. limits[1]
    local at, ahead, row = string.match(redis.call("GET", key) or "", "^(%S+) (%S+) (%S+)$")
    local step = 1000 / per_s
    local passed = at and math.max(0, now - tonumber(at)) / step or 0
    local allowed = burst - 1 + 1e-6 -- that is the noise of a float
    ahead = at and math.min(tonumber(ahead), allowed + 1) - passed or 0 -- the burst may have been larger
    local is_new = not at or -ahead > ROW_REST_MS / step + 2
    return {
        key = key,
        step = step,
        burst = burst,
        allowed = allowed,
        ahead = math.max(0, ahead),
        row = is_new and -1 or tonumber(row) - passed,
    }
end

-- When a submission over the rate should come again, for which it takes a place in the row; nil: it is not over it.
local function rate_refusal_ms(rate)
    if rate.ahead <= rate.allowed then
        return nil
    end
    rate.row = math.min(RETRY_CAP_MS / rate.step, math.max(rate.ahead - rate.allowed, rate.row + 1 / ROW_HASTE))
    rate.moved = true
    return math.ceil(rate.row * rate.step)
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

-- One more submission of that rate, which may be nil.
local function take_rate(rate)
    if rate then
        rate.ahead = rate.ahead + 1
        rate.moved = true
    end
end

-- Something is accepted that counts for them; each may be nil.
local function admit(queue, tenant, rate, key_rate)
    for _, bound in pairs({ queue, tenant }) do
        if not bound.starts and (is_idle(bound) or not bound.measured) then
            start_window(bound)
        end
    end
    take_rate(rate)
    take_rate(key_rate)
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
    elseif bound.row_ended then
        redis.call("HDEL", usage_key, "room_at:" .. name)
    end
    return waiting_of(bound), bytes_of(bound)
end

-- Write it; how many may come now, and in how many ms one more. nil: no rate.
local function close_rate(rate)
    if not rate then
        return 0, 0
    end
    if rate.moved then
        local life_ms = math.ceil(math.max(rate.ahead, rate.row) * rate.step) + RETRY_CAP_MS
        redis.call("SET", rate.key, string.format("%d %.17g %.17g", now, rate.ahead, rate.row), "PX", life_ms)
    end
    local room = rate.allowed - rate.ahead + 1
    local left = math.max(0, math.floor(room))
    return left, left < rate.burst and math.ceil((left + 1 - room) * rate.step) or 0
end
