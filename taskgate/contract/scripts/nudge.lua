#!lua flags=allow-oom
-- End a supervisor's blocking pop: a script, because at maxmemory a plain push is refused.
-- Replies how many nudges wait.
local worker = ARGV[2] -- string

local key = prefix .. "nudge:" .. worker
local waiting = redis.call("RPUSH", key, 1)
redis.call("PEXPIRE", key, 60000)
return waiting
