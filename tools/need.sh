#!/usr/bin/env bash
# Fail in one line unless every program named is on PATH. Debian's packages of those that tests use are named alike, but for systemd's.
set -euo pipefail
missing=()
for name in "$@"; do command -v "$name" >/dev/null || [[ -x /usr/sbin/$name ]] || missing+=("$name"); done
if ((${#missing[@]})); then
  printf 'missing: %s; on Debian: apt-get update && apt-get install --no-install-recommends %s\n' "${missing[*]}" "${missing[*]/systemd-analyze/systemd}" >&2
  exit 1
fi
