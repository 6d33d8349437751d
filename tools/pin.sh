#!/usr/bin/env bash
# Refresh constraints.txt: the newest versions that fit pyproject.toml with all extras, on Python 3.11 and 3.13 alike.
# Usage: tools/pin.sh [PYTHON3.11 [PYTHON3.13]], then `make test` with both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/pins"
# The second resolution is held to the first, so that one list serves both.
for python in "${1:-python3.11}" "${2:-python3.13}"; do
  "$python" -m venv "$work/env"
  "$work/env/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
  "$work/env/bin/python" -m pip install --quiet --dry-run --ignore-installed --report "$work/report" \
    --constraint "$work/pins" --editable ".[demo,test,load]" hatchling editables
  "$work/env/bin/python" - "$work/report" "$work/pins" <<'PY'
import json
import pathlib
import re
import sys

report, pins = map(pathlib.Path, sys.argv[1:])
lines = set(pins.read_text().splitlines())
for item in json.loads(report.read_text())["install"]:
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    if name != "taskgate":
        lines.add(f"{name}=={item['metadata']['version']}")
pins.write_text("".join(f"{line}\n" for line in sorted(lines)))
PY
  rm -rf "$work/env"
done
{
  echo "# Versions known to work together, for all extras and on Python 3.11 and 3.13. Refresh with tools/pin.sh."
  cat "$work/pins"
} >constraints.txt
