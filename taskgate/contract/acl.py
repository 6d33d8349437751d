"""What the user of our connections must be allowed in Redis or Valkey, and nothing besides."""

_CONNECTION = "auth client|setname ping select"
_SCRIPTS = "eval evalsha"
_CHANNELS = "publish pubsub|numsub subscribe unsubscribe"
_KEYS = (
    "blpop del exists get hdel hexists hget hgetall hincrby hkeys hmget hscan hset hstrlen hvals llen lpop lrange "
    "persist pexpire pttl rpush sadd scard set sismember smembers srandmember srem unlink xadd xdel xinfo|stream "
    "xlen xrange xread xsetid zadd zcard zcount zmscore zpopmin zrange zrangebyscore zrank zrem zremrangebyscore "
    "zrevrange zscore"
)
_SERVER = "config|get info time"
"""Read at start, by readiness and `taskgate doctor`; without the first two it is unknown what a 202 is worth there."""

COMMANDS = frozenset(" ".join((_CONNECTION, _SCRIPTS, _CHANNELS, _KEYS, _SERVER)).split())

RULES = ("resetkeys", "resetchannels", "~tg:*", "&tg:*", "-@all", *(f"+{name}" for name in sorted(COMMANDS)))
"""For `ACL SETUSER taskgate on >password …`."""
