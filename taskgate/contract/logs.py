"""Logging, configured once per process: structlog, JSON lines or a readable console."""

import contextlib
import logging
import sys
from typing import Any, Literal, TextIO

import msgspec
import structlog

LogFormat = Literal["auto", "json", "console"]
_encode = msgspec.json.Encoder(enc_hook=repr).encode


class _Lenient:
    """A stream that may lose what is written: its terminal hung up, or its reader has gone, and service must go on.

    Given one without a buffer, a line is one system call and needs no flush.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, line: Any) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(line)

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
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            *shared,
            structlog.processors.format_exc_info,
            *([] if before is None else [before]),
            *_rendered(console, stream),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=_factory(console, stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(numeric, logging.WARNING), stream=stream, format="%(message)s", force=True)


def _factory(console: bool, stream: TextIO) -> Any:
    lenient: Any = _Lenient(stream if console else getattr(stream.buffer, "raw", stream.buffer))
    return structlog.PrintLoggerFactory(lenient) if console else structlog.BytesLoggerFactory(lenient)


def _rendered(console: bool, stream: TextIO) -> list[structlog.typing.Processor]:
    if console:
        return [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    return [structlog.processors.EventRenamer("message"), _json_line]


def _json_line(_logger: Any, _method: str, fields: structlog.typing.EventDict) -> bytes:
    """A line costs every finished attempt: msgspec takes a fifth of what the standard library does."""
    return _encode(fields)
