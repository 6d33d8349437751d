#!lua flags=allow-oom
-- Delete finished tasks whose retention is over, and bring what the others keep down to its limit.
-- Replies how many tasks it took; as many as `limit` means that more may be due.
local limit = tonumber(ARGV[2]) -- int    tasks a call
local max_bytes = tonumber(ARGV[3]) -- int    that finished tasks may keep

local due = redis.call("ZRANGEBYSCORE", prefix .. "final", "-inf", now, "LIMIT", 0, limit)
for _, member in ipairs(due) do
    purge(member)
end
local taken = #due + make_room(max_bytes, limit - #due)
settle()
return taken
