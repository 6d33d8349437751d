"""Breaks a copy of this tree in one way after the other and shows which test notices (`make mutations`).

Arguments: parts of names; without any, all of mutations.toml. Fails when one survives.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.mutations.catalog import ROOT, Mutation, load

RUN_S, CLEAN_UP_S = 600, 30
PYTEST = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
TESTS_FAILED = 1
"""Of pytest's exit codes the only one that says what a test thinks; others are trouble with the entry itself."""


class Run(NamedTuple):
    code: int
    seconds: float
    output: str

    @property
    def failed(self) -> str:
        """The test that failed, and what it said; "" for none."""
        found = re.search(r"^(?:FAILED|ERROR) \S*?(\w+\.py::.*)$", self.output, re.MULTILINE)
        return found[1] if found else ""


def copy_tree(target: Path) -> None:
    """What git knows or would add, as it is now, committed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(root: Path, tests: Iterable[str]) -> Run:
    begun = time.monotonic()
    # First on the path: an environment made for ROOT would give processes that tests start the code that is whole.
    environ = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"}
    command = [*PYTEST, "-m", "not full", *tests]
    with subprocess.Popen(
        command, cwd=root, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # its fixtures end the processes that tests have started
            try:
                output, _ = process.communicate(timeout=CLEAN_UP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
    return Run(process.returncode, time.monotonic() - begun, output)


def try_out(mutation: Mutation, root: Path) -> str:
    """Break, test, restore; `killed`, `SURVIVED` or `BROKEN`, and say so."""
    path = root / mutation.file
    whole = path.read_bytes()
    times = path.stat()
    path.write_text(mutation.apply(root))
    try:
        run = run_tests(root, mutation.tests)
    finally:
        path.write_bytes(whole)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    verdict = "killed" if run.code == TESTS_FAILED else "BROKEN" if run.code else "SURVIVED"
    print(f"{verdict:8} {run.seconds:6.1f} s  {mutation.name:44} {run.failed or ' '.join(mutation.tests)}", flush=True)
    if verdict == "BROKEN":
        print(run.output)
    return verdict


def main(parts: list[str]) -> int:
    chosen = [each for each in load() if not parts or any(part in each.name for part in parts)]
    if not chosen:
        sys.exit(f"no mutation is named like {' or '.join(parts)}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="taskgate-mutations-") as folder:
        root = Path(folder)
        copy_tree(root)
        whole = run_tests(root, sorted({test for each in chosen for test in each.tests}))
        if whole.code:
            print(whole.output)
            sys.exit("the tests must pass before anything is broken")
        print(f"passed   {whole.seconds:6.1f} s  nothing broken yet", flush=True)
        verdicts = [try_out(each, root) for each in chosen]
    killed = verdicts.count("killed")
    print(f"{killed} of {len(chosen)} killed in {time.monotonic() - begun:.0f} s")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
