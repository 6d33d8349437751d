#!lua flags=allow-oom
-- Keep a new API key, and what changes of the one that it replaces, of which all gateways are told.
-- Replies "ok", "full" (as many as may be are there), "changed" (the old one is not what it was).
local id = ARGV[2] -- string
local record = ARGV[3] -- JSON   an api_keys.ApiKey
local old_id = ARGV[4] -- string of the one that it replaces; "" for none
local old_was = ARGV[5] -- JSON
local old_is = ARGV[6] -- JSON
local most = tonumber(ARGV[7]) -- int

local records = prefix .. "apikeys"
if old_id ~= "" and redis.call("HGET", records, old_id) ~= old_was then
    return "changed"
end
if #redis.call("HVALS", records) >= most then
    return "full"
end
if old_id ~= "" then
    redis.call("HSET", records, old_id, old_is)
    redis.call("PUBLISH", prefix .. "access", old_id)
end
redis.call("HSET", records, id, record)
return "ok"
