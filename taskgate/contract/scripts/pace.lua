#!lua flags=no-writes
-- How fast a queue moves, and who shares it: what an estimated start is made of.
-- Replies {now, drain_at, drain_n, drain_rate, waiting, lanes, tenants}: the middle four as in `usage`, false where unknown.
local queue = ARGV[2] -- string
local task_type = ARGV[3] -- string

local f = redis.call("HMGET", usage_key, "drain_at:" .. queue, "drain_n:" .. queue, "drain_rate:" .. queue,
    "waiting:queue:" .. queue)
return { now, f[1], f[2], f[3], f[4], redis.call("ZCARD", prefix .. "lanes:" .. queue),
    redis.call("ZCARD", prefix .. "lane:" .. queue .. ":" .. task_type) }
