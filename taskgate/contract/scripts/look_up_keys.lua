#!lua flags=no-writes
-- What is kept of API keys that callers have shown.
-- Replies {now, records, last uses}: per id the record as JSON and Unix ms; false for what is not there.
local ids = cmsgpack.unpack(ARGV[2]) -- list   of key ids

return {
    now,
    redis.call("HMGET", prefix .. "apikeys", unpack(ids)),
    redis.call("HMGET", prefix .. "apikeys:used", unpack(ids)),
}
