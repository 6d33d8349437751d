#!/usr/bin/env bash
# Schemathesis against a service of its own: nothing that fits the OpenAPI document, or nearly does, is answered with a fault of
# ours or in a way that the document does not tell. Arguments go to `st run`.
# It lives in an environment of its own, since it needs another jsonschema-rs than the gateway.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
env=.venv-schemathesis-4.32.5

if [[ ! -x $env/bin/st ]]; then
  rm -rf "$env"
  python -m venv "$env"
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check "schemathesis==${env##*-}" || { rm -rf "$env"; exit 1; }
fi

folder=$(mktemp -d)
port=$(python -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
TASKGATE_PORT=$port TASKGATE_DATA_DIR=$folder/data TASKGATE_LOG_FORMAT=json python -m taskgate up >"$folder/log" 2>&1 &
service=$!
trap 'kill $service 2>/dev/null || true; wait $service || true; rm -rf "$folder"' EXIT
ready="import urllib.request; urllib.request.urlopen('http://127.0.0.1:$port/readyz', timeout=5)"
for _ in $(seq 120); do
  python -c "$ready" 2>/dev/null && break
  kill -0 $service 2>/dev/null || break
  sleep 0.5
done
python -c "$ready" || { cat "$folder/log" >&2; exit 1; }

# What fits the document may still be refused: a type that does not exist, a payload that its schema does not allow.
export SCHEMATHESIS_HOOKS=schemathesis_hooks PYTHONPATH=$PWD/tools
(cd "$folder" && "$OLDPWD/$env/bin/st" --config-file "$OLDPWD/tools/schemathesis.toml" run "http://127.0.0.1:$port/openapi.json" --exclude-checks positive_data_acceptance \
  --workers 1 --request-timeout 10 --max-examples 20 "$@")
! grep -F '"level":"error"' "$folder/log"
