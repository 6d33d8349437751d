-- For wrk: submissions with a body of real size over kept-alive connections, as fast as they are answered.
--   wrk -t2 -c64 -d10s --latency -s loadtest/wrk.lua http://127.0.0.1:8080/tasks
-- WRK_BODY names a JSON file that is the webhook's body (without one: a small made one); TASKGATE_API_KEY is sent if set.

local threads = {}
accepted, refused, wrong = 0, 0, 0

local function webhook()
  local path = os.getenv("WRK_BODY")
  if not path or path == "" then return '{"action": "opened", "number": 1}' end
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

function setup(thread)
  table.insert(threads, thread)
end

function init()
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  local key = os.getenv("TASKGATE_API_KEY")
  if key and key ~= "" then wrk.headers["Authorization"] = "Bearer " .. key end
  wrk.body = '{"type": "webhook", "payload": {"delivery": "wrk", "event": "wrk", "steps": 0, "step_s": 0, "fails": false, "body": '
    .. webhook() .. '}}'
end

function response(status)
  if status == 202 then
    accepted = accepted + 1
  elseif status == 429 then
    refused = refused + 1
  else
    wrong = wrong + 1
  end
end

function done(summary)
  local sums = { accepted = 0, refused = 0, wrong = 0 }
  for _, thread in ipairs(threads) do
    for name in pairs(sums) do sums[name] = sums[name] + thread:get(name) end
  end
  print(string.format("accepted (202)  %.0f a second, %d", sums.accepted / (summary.duration / 1e6), sums.accepted))
  print(string.format("refused (429)   %d", sums.refused))
  print(string.format("anything else   %d", sums.wrong))
end
