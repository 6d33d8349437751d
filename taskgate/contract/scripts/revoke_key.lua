#!lua flags=allow-oom
-- Delete an API key and tell all gateways. Replies whether it was there.
local id = ARGV[2] -- string

redis.call("HDEL", prefix .. "apikeys:used", id)
local gone = redis.call("HDEL", prefix .. "apikeys", id)
redis.call("PUBLISH", prefix .. "access", id)
return gone
