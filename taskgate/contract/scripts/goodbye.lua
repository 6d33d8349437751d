#!lua flags=allow-oom
-- A supervisor that holds nothing leaves; one that still holds something is left for the reaper.
-- Replies 1 when it is gone, 0 when it holds tasks.
local worker = ARGV[2] -- string

if redis.call("SCARD", prefix .. "held:" .. worker) > 0 then
    return 0
end
redis.call("HDEL", prefix .. "beats", worker)
redis.call("DEL", prefix .. "worker:" .. worker)
return 1
