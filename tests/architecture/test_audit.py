"""What `make audit` makes of an answer: offline is no failure, and nothing else is taken for offline."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACE = "requests.exceptions.{}\nTraceback (most recent call last):\npip_audit._service.interface.{}\n"


def audited(folder: Path, *, report: str, log: str, code: int) -> subprocess.CompletedProcess[str]:
    """tools/audit.sh with a pip-audit that says so."""
    script = folder / "tools/audit.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / "tools/audit.sh", script)
    [version] = [line for line in script.read_text().splitlines() if line.startswith("env=.venv-audit-")]
    program = folder / version.removeprefix("env=") / "bin/pip-audit"
    program.parent.mkdir(parents=True)
    (folder / "report").write_text(report)
    (folder / "log").write_text(log)
    program.write_text(f"#!/bin/sh\ncat '{folder}/report'\ncat '{folder}/log' >&2\nexit {code}\n")
    program.chmod(0o755)
    return subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "log",
    [
        TRACE.format("ConnectionError: HTTPSConnectionPool: Failed to resolve", "ConnectionError"),
        TRACE.format("ProxyError: Tunnel connection failed: 403 Forbidden", "ServiceError"),
        TRACE.format("HTTPError: 403 Client Error: Forbidden for url", "ServiceError"),
        TRACE.format("HTTPError: 429 Client Error: Too Many Requests for url", "ServiceError"),
        TRACE.format("HTTPError: 503 Server Error: Service Unavailable for url", "ServiceError"),
    ],
)
def test_where_nobody_can_be_asked_it_is_said_and_no_failure(tmp_path: Path, log: str) -> None:
    done = audited(tmp_path, report="", log=log, code=1)
    assert done.returncode == 0
    assert done.stdout.startswith("audit: offline: not audited (OSV does not answer")


@pytest.mark.parametrize(
    "log",
    [
        TRACE.format("HTTPError: 400 Client Error: Bad Request for url", "ServiceError"),
        TRACE.format("HTTPError: 404 Client Error: Not Found for url", "ServiceError"),
        "ERROR:pip_audit._cli:requirement file constraints.txt contains an error\n",
    ],
)
def test_what_is_wrong_with_the_question_is_a_failure(tmp_path: Path, log: str) -> None:
    done = audited(tmp_path, report="", log=log, code=1)
    assert done.returncode == 1
    assert log in done.stdout


def test_a_known_fault_is_a_failure_and_none_is_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = audited(tmp_path / "a", report="a 1 PYSEC-1\n", log="", code=1)
    assert (found.returncode, found.stdout) == (1, "a 1 PYSEC-1\n")
    clean = audited(tmp_path / "b", report="", log="No known vulnerabilities found\n", code=0)
    assert (clean.returncode, clean.stdout) == (0, "No known vulnerabilities found\n")
