#!lua flags=allow-oom
-- The secret by which all gateways know each other's stream tokens of a period; the first one who asks brings it.
-- Replies it.
local period = ARGV[2] -- string
local fresh = ARGV[3] -- string
local life_ms = tonumber(ARGV[4]) -- int

local key = prefix .. "stream-secret:" .. period
local kept = redis.call("GET", key)
if not kept then
    redis.call("SET", key, fresh, "PX", life_ms)
end
return kept or fresh
