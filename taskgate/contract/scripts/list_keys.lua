#!lua flags=no-writes
-- All API keys. Replies {now, records as JSON, {id, last use in Unix ms, ...}}.

return { now, redis.call("HVALS", prefix .. "apikeys"), redis.call("HGETALL", prefix .. "apikeys:used") }
