#!lua flags=no-writes
-- How fast a queue moves, and who shares it: what an estimated start is made of.
-- Replies {now, drain_at, drain_n, drain_rate, waiting, lanes, tenants, {tenant...}}: numbers 2 to 5 as in `usage`, false
-- where unknown.
local queue = ARGV[2] -- string
local task_type = ARGV[3] -- string
local names = tonumber(ARGV[4]) -- int    of so many tenants of the type

local f = redis.call("HMGET", usage_key, "drain_at:" .. queue, "drain_n:" .. queue, "drain_rate:" .. queue,
    "waiting:queue:" .. queue)
local lane_key = prefix .. "lane:" .. queue .. ":" .. task_type
return { now, f[1], f[2], f[3], f[4], redis.call("ZCARD", prefix .. "lanes:" .. queue), redis.call("ZCARD", lane_key),
    names > 0 and redis.call("ZRANGE", lane_key, 0, names - 1) or {} }
