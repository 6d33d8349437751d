"""Logging, configured once per process: structlog, JSON lines or a readable console."""

import contextlib
import json
import logging
import sys
import time
from functools import lru_cache
from math import isfinite
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog

from taskgate.contract import ecs

LogFormat = Literal["auto", "json", "ecs", "console"]

LINE_BYTES = 32 * 1024
"""A longer line has its texts cut: collectors drop or split such lines."""

TEXT_CHARS = 4096
_encode = msgspec.json.Encoder(enc_hook=repr).encode
_LEVELS = {"warn": "warning", "exception": "error", "fatal": "critical"}


@lru_cache(2)
def _second(unix_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s))


def _now() -> str:
    """ISO 8601 in UTC."""
    unix_s, ns = divmod(time.time_ns(), 1_000_000_000)
    return f"{_second(unix_s)}.{ns // 1000:06d}Z"


class _Lenient:
    """A stream that may lose what is written: its terminal hung up, or its reader has gone, and service must go on.

    Given one without a buffer, a line is one system call and needs no flush.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, line: Any) -> None:
        try:  # not `suppress`, which costs as much as the system call
            self._stream.write(line)
        except OSError:
            pass

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure(
    log_format: LogFormat = "auto",
    level: str = "info",
    stream: TextIO = sys.stderr,
    before: structlog.typing.Processor | None = None,
) -> None:
    """Send every log line of this process to `stream`; `auto` is console on a terminal, else JSON.

    `before`: what may take a line before it is rendered.
    """
    console = log_format == "console" or (log_format == "auto" and stream.isatty())
    numeric = logging.getLevelNamesMapping()[level.upper()]
    last: list[structlog.typing.Processor] = [ecs.renamed, _json_line] if log_format == "ecs" else [_json_line]
    if console:
        last = [_printable, structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    structlog.configure(
        processors=[_add_facts, *([] if before is None else [before]), *last],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=_factory(console, stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(numeric, logging.WARNING), handlers=[_Foreign()], force=True)
    if before is None:  # those of handlers are output of their tasks
        logging.captureWarnings(True)


def _factory(console: bool, stream: TextIO) -> Any:
    if console:
        return structlog.PrintLoggerFactory(cast(TextIO, _Lenient(stream)))
    return lambda *_: _Lines(_Lenient(getattr(stream.buffer, "raw", stream.buffer)))


class _Lines:
    """Structlog's BytesLogger without its lock and flush: a line is one system call."""

    def __init__(self, stream: _Lenient) -> None:
        self.msg = self.debug = self.info = self.warning = self.error = self.critical = stream.write
        self.warn, self.exception, self.fatal = self.warning, self.error, self.critical


def _add_facts(logger: Any, method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Level, time and traceback, in one step: a line costs every finished attempt."""
    fields["level"] = _LEVELS.get(method, method)
    fields["timestamp"] = _now()
    if "exc_info" in fields:
        structlog.processors.format_exc_info(logger, method, fields)
    return fields


def _json_line(_logger: Any, _method: str, fields: structlog.typing.EventDict) -> bytes:
    if "event" in fields:
        fields["message"] = fields.pop("event")
    try:
        line = _encode(fields)
    except Exception:  # noqa: BLE001 — half a surrogate pair, or what has no repr(): nobody fails because of a log line
        return _careful_line(fields)
    # Line separators and control characters beyond ASCII are left alone by JSON, and not by what reads lines.
    if len(line) > LINE_BYTES or not line.isascii() or b"\x7f" in line:
        return _careful_line(fields)
    return line + b"\n"


def _careful_line(fields: structlog.typing.EventDict) -> bytes:
    """ASCII, each text cut, and never an error."""
    shown = {name: _shown(value) for name, value in fields.items()}
    line = json.dumps(shown, default=_shown).replace("\x7f", "\\u007f").encode()
    if len(line) > LINE_BYTES:
        line = json.dumps({name: value for name, value in shown.items() if not isinstance(value, list | dict)}).encode()
    return line + b"\n"


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, int | list | tuple | dict) or (isinstance(value, float) and isfinite(value)):
        return value
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 — whatever it is, it must not keep the line from being written
        text = f"<{type(value).__name__} that cannot be shown>"
    if len(text) > TEXT_CHARS:
        half = TEXT_CHARS // 2
        text = f"{text[:half]} … {len(text) - TEXT_CHARS} characters left out … {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _printable(_logger: Any, _method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Nothing that ends a line, moves a terminal's cursor or turns its writing around; tracebacks keep their lines."""
    for name, value in fields.items():
        if isinstance(value, str):
            kept = "\t\n" if name == "exception" else ""
            fields[name] = "".join(
                char if char.isprintable() or char in kept else _code(char) for char in _shown(value)
            )
    return fields


def _code(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65_536 else f"\\U{code:08x}"


class _Foreign(logging.Handler):
    """What libraries log, as lines like ours: theirs may end anywhere and begin with anything."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            logger = structlog.get_logger()
            say = logger.error if record.levelno >= logging.ERROR else logger.warning
            say(record.getMessage().rstrip(), logger=record.name, exc_info=record.exc_info)
        except Exception:  # noqa: BLE001 — the library's own way to say that a line could not be written
            self.handleError(record)
