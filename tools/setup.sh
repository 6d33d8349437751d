#!/usr/bin/env bash
# Build the environment `.venv-<minor version>`, which `.venv` leads to, if what it is made from has changed; then run a command in it.
# Usage: tools/setup.sh [EXTRA] [-- COMMAND ARGUMENT...]
# PYTHON names the interpreter; EXTRA is an optional extra of pyproject.toml beyond demo and test, in an environment of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Each of them would make Python or pip look, or install, elsewhere than in the environment.
unset PYTHONHOME PYTHONPATH PIP_PREFIX PIP_REQUIRE_VIRTUALENV PIP_TARGET PIP_USER

extra=""
if (($#)) && [[ $1 != -- ]]; then extra=$1; shift; fi
if (($#)) && [[ $1 == -- ]]; then shift; elif (($#)); then die "unknown argument: $1"; fi

# Prints three lines: the interpreter itself (PATH may name a wrapper), its version, and what it lacks.
probe='
import os, sys
print(sys.executable or "?")
print("%d.%d.%d" % sys.version_info[:3])
if sys.version_info < (3, 11):
    print("version")
    sys.exit()
try:
    import ensurepip, venv
except ImportError:
    print("venv")
    sys.exit()
try:
    os.close(os.pidfd_open(os.getpid()))
except OSError:
    print("kernel")
'

find_python() {
  local name answer lacks="" why=""
  for name in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
    mapfile -t answer < <("$name" -c "$probe" 2>/dev/null)
    ((${#answer[@]})) || continue
    python=${answer[0]} version=${answer[1]} lacks=${answer[2]:-}
    case $lacks in
      "") return ;;
      kernel) die "the kernel has no pidfd (Linux 5.3 or newer; WSL 1 has none): use a newer one, or WSL 2" ;;
      venv) why=${why:-"$python has no venv module: install it, on Debian or Ubuntu with: apt-get install python${version%.*}-venv"} ;;
      version) why=${why:-"$python is Python $version, but 3.11 or newer is needed: install it, or name it with PYTHON=/path/to/python3.11"} ;;
    esac
  done
  die "${why:-"no Python found as ${PYTHON:-python3}: install 3.11 or newer, on Debian or Ubuntu with: apt-get install python3 python3-venv"}"
}

is_whole() { [[ "$(cat "$env/stamp" 2>/dev/null)" == "$stamp" ]] && "$env/bin/python" -c "" 2>/dev/null; }

# Scripts carry the path of the environment that they were installed into.
move_into_place() {
  "$python" - "$new" "$env" <<'PY'
import pathlib
import sys

old, new = (str(pathlib.Path(argument).absolute()) for argument in sys.argv[1:])
for file in (pathlib.Path(old, "pyvenv.cfg"), *pathlib.Path(old, "bin").iterdir()):
    if file.is_file() and not file.is_symlink():
        content = file.read_bytes()
        file.write_bytes(content.replace(old.encode(), new.encode()))
PY
  printf '%s' "$stamp" >"$new/stamp"
  if [[ -e $env ]]; then
    rm -rf "$env.old"
    mv -T "$env" "$env.old"
  fi
  mv -T "$new" "$env"
  rm -rf "$env.old"
}

build() {
  say "building $env with Python $version (a minute or so; later runs skip this)"
  # Under the lock nobody else can be at work there: what is left is of an interrupted run.
  rm -rf "$new" "$env.old"
  trap 'rm -rf "$new"' EXIT
  "$python" -m venv "$new" || die "$python could not make an environment (its words are above)"
  # The project's own build runs in the environment too, so that constraints.txt pins everything that is installed.
  local install=("$new/bin/python" -m pip --disable-pip-version-check --no-input --quiet install --constraint constraints.txt)
  {
    "${install[@]}" hatchling editables &&
      "${install[@]}" --no-build-isolation --editable ".[demo,test${extra:+,$extra}]"
  } >"$new/pip.log" 2>&1 || {
    cat "$new/pip.log" >&2
    die "installing failed (pip's words are above); nothing half-made is left, so mend that and run it again"
  }
  move_into_place
  trap - EXIT
  say "$env is ready"
}

[[ $(uname -s) == Linux ]] ||
  die "Taskgate runs on Linux, not on $(uname -s): use a Linux container (docker-compose up), a virtual machine, or WSL 2"
find_python
env=.venv-${version%.*}${extra:+-$extra} new=$env.new
# The path counts as well: an environment that was copied or moved with its folder points at the old one.
stamp=$({ cat pyproject.toml constraints.txt tools/setup.sh && printf '%s\n' "$python" "$version" "$root"; } | sha256sum)

if ! is_whole; then
  exec 9>"$env.lock"
  flock --nonblock 9 || { say "waiting for another set-up of $env"; flock 9; }
  is_whole || build
  exec 9>&-
fi
# .venv is the one that people name; another PYTHON beside it does not take it over, nor does a folder that somebody made.
if [[ -z $extra && $(readlink .venv) != "$env" && (! -d .venv || -L .venv && -z ${PYTHON:-}) ]]; then
  ln -sfn "$env" ".venv.$$" && mv -T ".venv.$$" .venv
fi
if (($#)); then
  export PATH=$root/$env/bin:$PATH VIRTUAL_ENV=$root/$env
  exec "$@"
fi
