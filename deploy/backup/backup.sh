#!/usr/bin/env bash
# A copy of a running Redis' or Valkey's append-only file, which goes on serving meanwhile (docs/operations.md).
# usage: backup.sh DATA_FOLDER TARGET [OPTIONS OF redis-cli: -s SOCKET, -h HOST -p PORT, --tls …]
# DATA_FOLDER holds its `appendonlydir`; TARGET is made. A password goes into REDISCLI_AUTH, which nobody sees in `ps`.
set -euo pipefail
source="$1/appendonlydir" target=$2
shift 2
options=("$@")

ask() {
  local reply
  reply=$("${REDIS_CLI:-redis-cli}" -e --raw "${options[@]}" "$@") || exit
  printf '%s\n' "${reply//$'\r'/}"
}

rewriting() { ask INFO persistence | grep -qE '^aof_rewrite_(in_progress|scheduled):1'; }

rewritten() { while rewriting; do sleep 0.1; done; }

[[ ! -e $target ]] || { printf 'backup: %s is there already\n' "$target" >&2; exit 1; }
percentage=$(ask CONFIG GET auto-aof-rewrite-percentage | tail -n 1)
trap 'ask CONFIG SET auto-aof-rewrite-percentage "$percentage" >/dev/null' EXIT
# A rewrite replaces the files: none may begin while they are copied.
ask CONFIG SET auto-aof-rewrite-percentage 0 >/dev/null
rewritten
ask BGREWRITEAOF >/dev/null
rewritten
ask INFO persistence | grep -q '^aof_last_bgrewrite_status:ok' || { printf 'backup: its rewrite failed: see its log\n' >&2; exit 1; }

manifest=$(cat "$source"/*.manifest)
rm -rf "$target.part"
mkdir -p "$target.part"
cp -a "$source" "$target.part/"
[[ $manifest == "$(cat "$source"/*.manifest)" ]] || { printf 'backup: somebody else began a rewrite; try again\n' >&2; exit 1; }
sync -f "$target.part"
mv "$target.part" "$target"
