#!lua flags=allow-oom
-- Do what is due: scheduled | retrying -> queued; scheduled | queued | retrying -> expired past the deadline of a task
-- that was never started.
-- Replies {now, done, next_due}; next_due is 0 when nothing is left.
local limit = tonumber(ARGV[2]) -- int    tasks a call
local retention_ms = tonumber(ARGV[3]) -- int

local function promote(id)
    local key = prefix .. "task:" .. id
    clear_due(id)
    local f = redis.call("HMGET", key, "status", "place", "score", "version", "attempt", "deadline", "bytes",
        "met", "ckey")
    local status, place, attempt, deadline = f[1], f[2], tonumber(f[5]), tonumber(f[6])
    local version = (tonumber(f[4]) or 0) + 1
    if not WAITING[status] then
        return
    end
    if not f[8] and deadline and deadline <= now then
        end_waiting(id, status, place, tonumber(f[7]), "expired", retention_ms, version, attempt, "")
    elseif status ~= "queued" then
        tally_delayed(place, status, -1)
        redis.call("HSET", key, "status", "queued", "version", version)
        redis.call("HDEL", key, "due")
        if deadline and not f[8] then
            set_due(id, deadline)
        end
        enqueue(id, place, f[3], f[9])
        if status == "retrying" then -- the stream begins at the first claim
            tell_status(id, version, "queued", attempt, "")
        else
            redis.call("PUBLISH", prefix .. "changes:" .. id, version)
        end
    end
end

local due = redis.call("ZRANGEBYSCORE", prefix .. "due", "-inf", now, "LIMIT", 0, limit)
for _, id in ipairs(due) do
    promote(id)
end
settle()
local next_due = redis.call("ZRANGE", prefix .. "due", 0, 0, "WITHSCORES")[2]
return { now, #due, math.ceil(tonumber(next_due) or 0) }
