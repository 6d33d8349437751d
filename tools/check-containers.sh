#!/usr/bin/env bash
# Build the image, run the stack of docker-compose.yml as a client of it, stop it under work and look what that cost.
# Usage: tools/check-containers.sh   (needs docker and docker-compose; PORT is the port it is published on, 8080)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PORT=${PORT:-8080} COMPOSE_PROJECT_NAME=taskgate-check TASKGATE_API_KEY=check-$RANDOM$RANDOM
export TASKGATE_URL=http://127.0.0.1:$PORT

client() { tools/setup.sh -- taskgate "$@"; }
die() { printf 'containers: %s\n' "$*" >&2; docker-compose logs --tail 40 >&2; exit 1; }
say() { printf 'containers: %s\n' "$*"; }

# Polls, since docker-compose of Debian has no --wait.
wait_for() {
  local what=$1 deadline=$((SECONDS + 60))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || die "after 60 s still not: $what"
    sleep 0.2
  done
}
ready() { curl -fsS "$TASKGATE_URL/readyz"; }
healthy() { [[ $(docker inspect -f '{{.State.Health.Status}}' "$(docker-compose ps -q "$1")") == healthy ]]; }
field() { client status "$1" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$2"; }
is_running() { [[ $(field "$1" status) == running ]]; }

trap 'docker-compose down --volumes --timeout 30 >/dev/null 2>&1' EXIT
docker build --quiet --network host -t taskgate . 2>/dev/null || die "the image cannot be built: docker build --network host ."
docker-compose up -d
wait_for "ready" ready
wait_for "gateway healthy" healthy gateway
wait_for "worker healthy" healthy worker
say "up and healthy"

[[ $(docker-compose exec -T worker id -u) != 0 ]] || die "tasks run as root"
[[ $(client submit demo.echo '{"text": "from a container"}' --wait) == *"from a container"* ]] || die "echo came back wrong"
client submit demo.sleep '{"seconds": 0.3}' --wait >/dev/null
say "tasks succeed"

long=$(client submit demo.sleep '{"seconds": 60}')
wait_for "the long task runs" is_running "$long"
started=$SECONDS
docker-compose stop worker
((SECONDS - started < 30)) || die "the worker had to be killed after $((SECONDS - started)) s"
docker-compose stop gateway valkey
for service in worker gateway valkey; do
  code=$(docker inspect -f '{{.State.ExitCode}}' "$(docker-compose ps -q "$service")")
  [[ $code == 0 ]] || die "$service exited with $code"
done
say "stopped in order, with a task at work: every exit code is 0"

docker-compose start
wait_for "ready again" ready
wait_for "the task that was handed back runs again" is_running "$long"
[[ $(field "$long" attempt) == 1 ]] || die "the stop was counted as an attempt"
client cancel "$long" >/dev/null
say "what was at work runs again after the start, uncounted"
