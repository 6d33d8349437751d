#!lua flags=no-writes
-- Lanes with queued tasks that no supervisor serves. Replies {queue, type}...
local served = cmsgpack.unpack(ARGV[2]) -- list   of {queue, type, kind}: what the caller serves

local own = {}
for _, entry in ipairs(served) do
    own[entry[1] .. ":" .. entry[2]] = true
end

local strange = {}
for _, queue in ipairs(redis.call("SMEMBERS", prefix .. "queues")) do
    for _, task_type in ipairs(redis.call("ZRANGE", prefix .. "lanes:" .. queue, 0, -1)) do
        if not own[queue .. ":" .. type_of(task_type)] then
            strange[#strange + 1] = { queue, task_type }
        end
    end
end

local lanes = {}
local others = #strange > 0 and served_lanes() -- where all serve the same, nobody's record is read
for _, lane in ipairs(strange) do
    if not others[lane[1] .. ":" .. type_of(lane[2])] then
        lanes[#lanes + 1] = lane
    end
end
return lanes
