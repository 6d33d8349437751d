#!lua flags=no-writes
-- Page through a tenant's tasks, reading no more of each than the filters need.
-- Replies {more, scanned, at, id, {id...}}: whether others follow, the last that was looked at, those that fit.
local index = ARGV[2] -- string `all` (by creation) or `letters` (dead letters, by end)
local tenant = ARGV[3] -- string
local oldest_first = ARGV[4] == "1" -- bool
local from = ARGV[5] -- string Unix ms, "inf" or "-inf": only what comes behind that time and id
local from_id = ARGV[6] -- string "" is smaller than any
local till = ARGV[7] -- string Unix ms, "inf" or "-inf": newest first, not what is older; oldest first, only what is
local limit = tonumber(ARGV[8]) -- int    tasks to look at
local statuses = cmsgpack.unpack(ARGV[9]) -- list   of statuses; none: any
local wanted_type = ARGV[10] -- string "" is any
local wanted_queue = ARGV[11] -- string "" is any
local wanted_kind = ARGV[12] -- string of its error; "" is any

local index_key = prefix .. index .. ":" .. tenant

-- Places `first` to `last` of the index, in the order that is wanted.
local function slice(first, last, ...)
    if oldest_first then
        return redis.call("ZRANGE", index_key, first, last, ...)
    end
    return redis.call("ZREVRANGE", index_key, first, last, ...)
end

local function is_behind(id)
    if oldest_first then
        return id > from_id
    end
    return id < from_id
end

-- Where those behind the given one begin: many may be of the same millisecond.
local function start()
    local low
    if oldest_first then
        low = redis.call("ZCOUNT", index_key, "-inf", "(" .. from)
    else
        low = redis.call("ZCOUNT", index_key, "(" .. from, "+inf")
    end
    local high = low + redis.call("ZCOUNT", index_key, from, from)
    while low < high do
        local middle = math.floor((low + high) / 2)
        if is_behind(slice(middle, middle)[1]) then
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
local plain = any_status and wanted_type == "" and wanted_queue == "" and wanted_kind == ""

local function kind_of(id)
    local error = redis.call("HGET", prefix .. "task:" .. id, "error") or ""
    return string.match(error, '"kind":"([%w_]*)"') -- inside a text its quotes would be escaped
end

local function fits(id)
    local f = redis.call("HMGET", prefix .. "task:" .. id, "status", "place")
    if not f[1] or not (any_status or status_wanted[f[1]]) then
        return false
    end
    local queue, lane_type = place_parts(f[2])
    return (wanted_queue == "" or queue == wanted_queue) and (wanted_type == "" or type_of(lane_type) == wanted_type)
        and (wanted_kind == "" or kind_of(id) == wanted_kind)
end

local function is_over(at)
    if oldest_first then
        return at >= tonumber(till)
    end
    return at < tonumber(till)
end

local first = start()
local entries = slice(first, first + limit, "WITHSCORES") -- one more: whether there is one
local more, scanned, at, last, found = 0, 0, "", "", {}
for i = 1, #entries, 2 do
    if is_over(tonumber(entries[i + 1])) then
        break
    end
    if scanned == limit then
        more = 1
        break
    end
    scanned, at, last = scanned + 1, entries[i + 1], entries[i]
    if plain or fits(last) then
        found[#found + 1] = last
    end
end
return { more, scanned, at, last, found }
