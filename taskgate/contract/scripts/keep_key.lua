#!lua flags=allow-oom
-- Keep a new API key, and what changes of the one that it replaces, of which all gateways are told. Keys whose end is
-- long over are purged; where there is no room for another, all that have ended.
-- Replies "ok", "full" (as many as may be have not ended), "changed" (the old one is not what it was).
local id = ARGV[2] -- string
local record = ARGV[3] -- JSON   an api_keys.ApiKey
local old_id = ARGV[4] -- string of the one that it replaces; "" for none
local old_was = ARGV[5] -- JSON
local old_is = ARGV[6] -- JSON
local most = tonumber(ARGV[7]) -- int    keys of the service
local most_of_tenant = tonumber(ARGV[8]) -- int    keys of the same tenant
local ended_ms = tonumber(ARGV[9]) -- int    so long one that has ended is kept

local records = prefix .. "apikeys"
if old_id ~= "" and redis.call("HGET", records, old_id) ~= old_was then
    return "changed"
end

local kept = redis.call("HGETALL", records)
local is_crowded = #kept / 2 >= most
local tenant = cjson.decode(record).tenant
local live, of_tenant = 1, 1 -- with the new one
local grows = true
for i = 1, #kept, 2 do
    local is_old = kept[i] == old_id
    local key = cjson.decode(is_old and old_is or kept[i + 1])
    local ends = key.expires_ms or math.huge
    if ends > now then
        live = live + 1
        of_tenant = of_tenant + (key.tenant == tenant and 1 or 0)
    elseif is_old then
        grows = false
    elseif is_crowded or ends <= now - ended_ms then
        redis.call("HDEL", records, kept[i])
        redis.call("HDEL", records .. ":used", kept[i])
    end
end
if grows and (live > most or of_tenant > most_of_tenant) then
    return "full"
end
if old_id ~= "" then
    redis.call("HSET", records, old_id, old_is)
    redis.call("PUBLISH", prefix .. "access", old_id)
end
redis.call("HSET", records, id, record)
return "ok"
