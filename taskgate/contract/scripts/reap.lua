#!lua flags=allow-oom
-- End what a dead supervisor held: running -> queued (old score, attempt counted) | failed; canceling -> canceled.
-- Replies {"alive"}, {"gone"} or {"ok", remaining, ended}, `ended`: {id, status, attempt, spec} of each.
-- The call that leaves nothing removes the supervisor.
local worker = ARGV[2] -- string the dead one
local watched = ARGV[3] -- string its "counter:lease_ms" that stood still; another value: it lives
local limit = tonumber(ARGV[4]) -- int    tasks a call
local retention_ms = tonumber(ARGV[5]) -- int
local dead_retention_ms = tonumber(ARGV[6]) -- int

local beats_key = prefix .. "beats"
local held_key = prefix .. "held:" .. worker
local seen = redis.call("HGET", beats_key, worker)
if not seen then
    return { "gone" }
end
if seen ~= watched then
    return { "alive" }
end

-- Read without decoding the whole: `metadata`, which stands behind, is the client's and may say anything.
local function max_attempts(spec)
    local head = string.match(spec, '^(.-),"metadata":') or spec
    return tonumber(string.match(head, '"max_attempts":(%d+)')) or 3 -- models.TaskSpec omits its default
end

-- What became of it.
local function lost(id, task, spec)
    local error = cjson.encode({
        kind = "lost",
        message = "the supervisor that ran attempt " .. task.attempt .. " is gone",
        worker = worker,
        attempt = task.attempt,
    })
    redis.call("HSET", prefix .. "task:" .. id, "error", error)
    local more = ',"error":' .. error
    if task.status == "canceling" then
        end_held(id, task, "canceled", retention_ms, more)
        return "canceled"
    elseif task.attempt >= max_attempts(spec) then
        end_held(id, task, "failed", dead_retention_ms, more)
        return "failed"
    end
    remember(prefix .. "task:" .. id, error, now)
    requeue(id, task, task.attempt, 0, true, more)
    return "queued"
end

local ended = {}
for _, id in ipairs(redis.call("SRANDMEMBER", held_key, limit)) do
    local epoch = tonumber(redis.call("HGET", prefix .. "task:" .. id, "epoch")) or 0
    local refused, task = held_by(id, worker, epoch)
    redis.call("SREM", held_key, id)
    if not refused then
        release(worker, { id })
        stops_running(task.place)
        local spec = redis.call("HGET", prefix .. "task:" .. id, "spec")
        ended[#ended + 1] = { id, lost(id, task, spec), task.attempt, spec }
    end
end
settle()

local remaining = redis.call("SCARD", held_key)
if remaining == 0 then
    redis.call("HDEL", beats_key, worker)
    redis.call("DEL", prefix .. "worker:" .. worker)
end
return { "ok", remaining, ended }
