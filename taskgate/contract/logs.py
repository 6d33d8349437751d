"""Logging, configured once per process: structlog, JSON lines or a readable console."""

import contextlib
import logging
import sys
import time
from functools import lru_cache
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog

LogFormat = Literal["auto", "json", "console"]
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
    structlog.configure(
        processors=[
            _add_facts,
            *([] if before is None else [before]),
            structlog.dev.ConsoleRenderer(colors=stream.isatty()) if console else _json_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=_factory(console, stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(numeric, logging.WARNING), stream=stream, format="%(message)s", force=True)


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
    fields["message"] = fields.pop("event")
    return _encode(fields) + b"\n"
