#!lua flags=no-writes
-- Page through a tenant's tasks, newest first, reading no more of each than the filters need.
-- Replies {more, scanned, created, id, {id...}}: whether older ones follow, the last that was looked at, those that fit.
local tenant = ARGV[2] -- string
local before = ARGV[3] -- string Unix ms, or "inf": only what was created before it, or in it with a smaller id
local before_id = ARGV[4] -- string "" is smaller than any
local after = ARGV[5] -- string Unix ms, or "-inf": only what was created then or later
local limit = tonumber(ARGV[6]) -- int    tasks to look at
local statuses = cmsgpack.unpack(ARGV[7]) -- list   of statuses; none: any
local wanted_type = ARGV[8] -- string "" is any
local wanted_queue = ARGV[9] -- string "" is any

local all_key = prefix .. "all:" .. tenant

-- Where, newest first, those before the given one begin: many may be of the same millisecond.
local function start()
    local low = redis.call("ZCOUNT", all_key, "(" .. before, "+inf")
    local high = low + redis.call("ZCOUNT", all_key, before, before)
    while low < high do
        local middle = math.floor((low + high) / 2)
        if redis.call("ZREVRANGE", all_key, middle, middle)[1] < before_id then
            high = middle
        else
            low = middle + 1
        end
    end
    return low
end

local any_status, status_wanted = #statuses == 0, {}
for _, status in ipairs(statuses) do
    status_wanted[status] = true
end
local plain = any_status and wanted_type == "" and wanted_queue == ""

local function fits(id)
    local f = redis.call("HMGET", prefix .. "task:" .. id, "status", "place")
    if not f[1] or not (any_status or status_wanted[f[1]]) then
        return false
    end
    local queue, lane_type = place_parts(f[2])
    return (wanted_queue == "" or queue == wanted_queue) and (wanted_type == "" or type_of(lane_type) == wanted_type)
end

local first = start()
local entries = redis.call("ZREVRANGE", all_key, first, first + limit, "WITHSCORES") -- one more: whether there is one
local oldest = tonumber(after) or -math.huge
local more, scanned, created, last, found = 0, 0, "", "", {}
for i = 1, #entries, 2 do
    if tonumber(entries[i + 1]) < oldest then
        break
    end
    if scanned == limit then
        more = 1
        break
    end
    scanned, created, last = scanned + 1, entries[i + 1], entries[i]
    if plain or fits(last) then
        found[#found + 1] = last
    end
end
return { more, scanned, created, last, found }
