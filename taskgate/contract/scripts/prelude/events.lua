-- A task's stream, and those who watch it.
local EVENTS_KEPT = 500

local changes, versions -- tables in a script that tells of many tasks and ends with `wake_watchers`

-- Append to the task's stream and wake its watchers. `data` is a JSON object.
local function tell(id, name, version, data)
    redis.call("XADD", prefix .. "task:" .. id .. ":events", "MAXLEN", "~", EVENTS_KEPT, "*",
        "event", name, "seq", version, "data", data)
    local channel = prefix .. "changes:" .. id
    if changes then
        changes[#changes + 1], versions[#versions + 1] = channel, version
    else
        redis.call("PUBLISH", channel, version)
    end
end

-- Most tasks have none: to ask for all at once costs less than to tell nobody of each.
local function wake_watchers()
    if #changes == 0 then
        return
    end
    local watched = redis.call("PUBSUB", "NUMSUB", unpack(changes))
    for i, channel in ipairs(changes) do
        if watched[2 * i] > 0 then
            redis.call("PUBLISH", channel, versions[i])
        end
    end
end

-- A status event; `more` is "" or further JSON members with a leading comma.
local function tell_status(id, version, status, attempt, more)
    tell(id, "status", version, string.format('{"status":"%s","attempt":%d%s}', status, attempt, more))
end
