"""`demo.stubborn`: ignores every request to stop; only SIGKILL ends it."""

import signal
import time

from pydantic import BaseModel

from taskgate import Attempt, handler


class StubbornRequest(BaseModel, extra="forbid"):
    pass


@handler("demo.stubborn", timeout_s=3, max_attempts=1)
def stubborn(payload: StubbornRequest, attempt: Attempt) -> None:
    """Never ends by itself: ignores SIGTERM and swallows every exception, whatever it means."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ignored = 0
    while True:
        try:
            while True:
                attempt.progress(ignored, None, unit="requests ignored", stage="not listening")
                time.sleep(0.05)
        except BaseException:  # noqa: BLE001 - that is what it shows
            ignored += 1
