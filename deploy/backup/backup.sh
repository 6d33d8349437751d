#!/bin/sh
# A copy of a running Redis' or Valkey's append-only file, which goes on serving meanwhile (docs/operations.md).
# usage: backup.sh DATA_FOLDER TARGET [OPTIONS OF redis-cli: -s SOCKET, -h HOST -p PORT, --tls …]
# DATA_FOLDER holds its `appendonlydir`; TARGET is made. A password goes into REDISCLI_AUTH, which nobody sees in `ps`.
set -eu
source=$1/appendonlydir target=$2
shift 2

fail() {
  printf 'backup: %s\n' "$1" >&2
  exit 1
}

# Called with the options for redis-cli, then the command.
ask() { "${REDIS_CLI:-redis-cli}" -e --raw "$@" </dev/null; }

until_rewritten() {
  while :; do
    state=$(ask "$@" INFO persistence)
    case $state in
      *aof_rewrite_in_progress:1* | *aof_rewrite_scheduled:1*) sleep 0.1 ;;
      *) return ;;
    esac
  done
}

[ ! -e "$target" ] || fail "$target is there already"
percentage=$(ask "$@" CONFIG GET auto-aof-rewrite-percentage)
percentage=${percentage##*[!0-9]}
trap 'ask "$@" CONFIG SET auto-aof-rewrite-percentage "$percentage" >/dev/null' EXIT
trap 'exit 1' HUP INT TERM
# A rewrite replaces the files: none may begin while they are copied.
ask "$@" CONFIG SET auto-aof-rewrite-percentage 0 >/dev/null
until_rewritten "$@"
ask "$@" BGREWRITEAOF >/dev/null
until_rewritten "$@"
case $state in *aof_last_bgrewrite_status:ok*) ;; *) fail "its rewrite failed: see its log" ;; esac

manifest=$(cat "$source"/*.manifest)
rm -rf "$target.part"
mkdir -p "$target.part"
cp -a "$source" "$target.part/"
[ "$manifest" = "$(cat "$source"/*.manifest)" ] || fail "somebody else began a rewrite; try again"
sync
mv "$target.part" "$target"
