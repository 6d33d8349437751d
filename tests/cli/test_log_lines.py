"""Log lines: one record each, whatever is in it, and never an error of whoever logs."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from taskgate.contract import logs

FORGED = '\r\n{"message":"forged"}\x1b[31m\x1b]0;title\x07\0\x7f\x9b\u2028\u2029\u202e\u2066\u200f\U000e0041é'


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Callable[[str], list[str]]]:
    """Configures logging in a format; after that, what was logged is in the file that it returns the lines of."""
    before, root, showwarning = structlog.get_config(), logging.getLogger(), warnings.showwarning
    handlers, level = root.handlers[:], root.level
    path = tmp_path / "log"
    with path.open("w") as stream:

        def configure(log_format: Any) -> Callable[[], list[str]]:
            logs.configure(log_format, stream=stream)

            def read() -> list[str]:
                stream.flush()
                return path.read_bytes().decode().split("\n")[:-1]

            return read

        yield configure  # type: ignore[misc]
        logging.captureWarnings(False)
        warnings.showwarning = showwarning
        structlog.configure(**before)
        root.handlers, root.level = handlers, level


def test_a_json_line_is_ascii_and_one_record_whatever_is_in_it(lines: Any) -> None:
    read = lines("json")
    log = structlog.get_logger()
    log.info("plain", task_id="t", number=1)
    for value in (FORGED, "half \ud800", Unshowable(), 2**70, float("nan"), ["a", FORGED], {"é": 1}, b"bytes"):
        log.info("odd", value=value)
    log.info("large", text="x" * 100_000, task_id="t")
    log.info("large", many=["x"] * 100_000, task_id="t")
    found = [json.loads(line) for line in read()]
    assert len(found) == 11
    assert all(line.isascii() and len(line) < 40_000 and not set(line) & set("\r\0\x1b\x7f") for line in read())
    assert found[0] | {"timestamp": ""} == {
        "level": "info", "timestamp": "", "message": "plain", "task_id": "t", "number": 1
    }  # fmt: skip
    assert found[1]["value"] == FORGED
    assert "half" in found[2]["value"]
    assert {line["message"] for line in found} == {"plain", "odd", "large"}
    assert [line["task_id"] for line in found[-2:]] == ["t", "t"]


def test_a_console_line_ends_where_the_record_does_and_moves_no_cursor(lines: Any) -> None:
    read = lines("console")
    log = structlog.get_logger()
    log.info("odd" + FORGED, value=FORGED, half="\ud800")
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("failed")
    told = read()
    assert told[0].count("forged") == 2, "its text and its value end where its line does"
    assert any(line.startswith("ValueError: ") for line in told), "a traceback keeps its lines"
    assert not set("".join(told)) & set("\r\0\x1b\x07\x7f\x9b\u2028\u2029\u202e\u2066\u200f\U000e0041")
    assert "\\u202e" in told[0]


def test_what_libraries_log_is_a_record_too(lines: Any) -> None:
    read = lines("json")
    logging.getLogger("library").error("two\nlines")
    logging.getLogger("library").info("not wanted")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("asyncio").exception("never retrieved")
    warnings.showwarning("old", RuntimeWarning, "file.py", 1)
    found = [json.loads(line) for line in read()]
    assert [(line["logger"], line["message"], line["level"]) for line in found[:2]] == [
        ("library", "two\nlines", "error"),
        ("asyncio", "never retrieved", "error"),
    ]
    assert "ValueError: broken" in found[1]["exception"]
    assert (found[2]["logger"], "old" in found[2]["message"]) == ("py.warnings", True)
    assert len(found) == 3


def test_a_traceback_shows_no_values_of_variables(lines: Any) -> None:
    for log_format in ("json", "ecs", "console"):
        read = lines(log_format)
        secret = "".join(["hid", "den"])
        try:
            raise ValueError(len(secret))
        except ValueError:
            structlog.get_logger().exception("failed")
        assert "ValueError" in "".join(read())
        assert "hidden" not in "".join(read())


def test_ecs_has_the_names_of_elastic(lines: Any) -> None:
    read = lines("ecs")
    structlog.get_logger().info("request", task_id="t", method="GET", status=200, duration_ms=1.5, trace_id="0a")
    [line] = [json.loads(one) for one in read()]
    assert line.pop("@timestamp")
    assert line == {
        "ecs.version": "8.17.0",
        "event.duration": 1_500_000,
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "log.level": "info",
        "message": "request",
        "service.name": "taskgate",
        "taskgate.duration_ms": 1.5,
        "taskgate.task_id": "t",
        "trace.id": "0a",
    }
