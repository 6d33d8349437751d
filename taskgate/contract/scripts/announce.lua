#!lua flags=allow-oom
-- Publish task types: a script, because a supervisor that starts at maxmemory must be able to serve what waits.
-- Replies how many are new.
local fields = cmsgpack.unpack(ARGV[2]) -- list   "<type>:<schema hash>", models.TypeInfo as JSON, ...

return redis.call("HSET", prefix .. "types", unpack(fields))
