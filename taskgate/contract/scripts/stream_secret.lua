#!lua flags=allow-oom
-- The secret by which all gateways know each other's stream tokens; the first one who asks brings it. Replies it.
local fresh = ARGV[2] -- string

local key = prefix .. "stream-secret"
local kept = redis.call("GET", key)
if not kept then
    redis.call("SET", key, fresh)
end
return kept or fresh
