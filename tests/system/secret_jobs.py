"""Handlers that say their payload wherever a handler can say something."""

import logging
import os
import signal
import sys
import warnings

import structlog
from pydantic import BaseModel

from taskgate import Attempt, Fail, handler


class Strict(BaseModel):
    text: str
    number: int = 0


@handler("tells", max_attempts=1, timeout_s=30)
def tells(payload: Strict, attempt: Attempt) -> str:
    text = payload.text
    attempt.progress(1, 2, stage=text, message=text, unit=text)
    attempt.emit("said", {"text": text})
    attempt.checkpoint({"text": text})
    attempt.log.warning(text, value=text)
    structlog.get_logger().error(text, value=text)
    logging.getLogger(text).error(text)
    warnings.warn(text, stacklevel=1)
    print(text)
    print(text, file=sys.stderr)
    os.write(2, text.encode() + b"\n")
    attempt.submit("raises", {"text": text}, metadata={"a": text}, unique_key=text, concurrency_key=text)
    return text


@handler("tells.async", max_attempts=1, timeout_s=30)
async def tells_async(payload: Strict, attempt: Attempt) -> str:
    attempt.log.warning(payload.text)
    print(payload.text)
    raise RuntimeError(payload.text)


@handler("raises", max_attempts=1, timeout_s=30)
def raises(payload: Strict, attempt: Attempt) -> None:
    secret = payload.text
    raise ValueError(f"with {secret}") from Fail(secret)


@handler("dies", max_attempts=1, timeout_s=30)
def dies(payload: Strict, attempt: Attempt) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@handler("hangs", max_attempts=1, timeout_s=0.3)
def hangs(payload: Strict, attempt: Attempt) -> None:
    with attempt.waiting(payload.text):
        signal.pause()
