#!lua flags=allow-oom
-- Keep that API keys were used; not of those that are gone by now. Replies of how many.
local ids = cmsgpack.unpack(ARGV[2]) -- list   of key ids

local kept = 0
for _, id in ipairs(ids) do
    if redis.call("HEXISTS", prefix .. "apikeys", id) == 1 then
        redis.call("HSET", prefix .. "apikeys:used", id, now)
        kept = kept + 1
    end
end
return kept
