#!/usr/bin/env bash
# Known vulnerabilities of everything in constraints.txt, by OSV. Where that cannot be asked it is said, and is no failure: what is
# built does not depend on the network of the day. Arguments go to pip-audit.
# It lives in an environment of its own, since it brings more packages than it finds faults in.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
env=.venv-audit-2.10.1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

offline() {
  printf 'audit: offline: not audited (%s)\n' "$1"
  exit 0
}

if [[ ! -x $env/bin/pip-audit ]]; then
  rm -rf "$env"
  python -m venv "$env"
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check "pip-audit==${env##*-}" 2>"$folder/pip" ||
    { rm -rf "$env"; offline "pip-audit cannot be installed: $(tail -n 1 "$folder/pip")"; }
fi
"$env/bin/pip-audit" --vulnerability-service osv --requirement constraints.txt --no-deps --disable-pip --timeout 10 \
  --progress-spinner off --desc on "$@" >"$folder/report" 2>"$folder/log" && { cat "$folder/log"; exit 0; }
if [[ -s $folder/report ]]; then
  cat "$folder/report"
  exit 1
fi
# Any other refusal (400, 404) is of what we ask, and would be the same every day.
grep -qE '(ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|ChunkedEncodingError)\b|HTTPError: (403|407|408|429|5[0-9][0-9]) ' "$folder/log" &&
  offline "OSV does not answer: $(tail -n 1 "$folder/log")"
cat "$folder/log"
exit 1
