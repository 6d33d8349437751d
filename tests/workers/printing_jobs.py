"""Handlers that print, in every way there is."""

import ctypes
import logging
import os
import subprocess
import sys
from typing import Any

from taskgate import Attempt, handler

logger = logging.getLogger("jobs")
libc = ctypes.CDLL(None)


@handler("prints")
def prints(payload: Any, attempt: Attempt) -> None:
    print("print")
    print("error", file=sys.stderr)
    subprocess.run(["sh", "-c", "echo shell; echo shell error >&2"], check=True)
    libc.printf(b"printf\n")
    os.write(1, b"raw\n")
    sys.stdout.buffer.write(b"buffer\n")
    logger.info("info %d", 1)
    attempt.log.warning("careful", n=3, what="a b")
    try:
        raise ValueError("oops")
    except ValueError:
        logger.exception("went wrong")
    sys.stdout.write("no end of line")
