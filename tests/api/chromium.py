"""A headless chromium, spoken to over two pipes."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
_QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server"]


class Browser:
    """One page."""

    def __init__(self, to: int, back: int) -> None:
        self._to = os.fdopen(to, "wb", buffering=0)
        self._back = os.fdopen(back, "rb")
        self._count = 0
        self._session = ""

    def open(self, url: str) -> None:
        target = self._call("Target.createTarget", url=url)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def value_of(self, expression: str) -> Any:
        """What that JavaScript is now."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def close(self) -> None:
        self._to.close()
        self._back.close()

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        call = {"id": self._count, "method": method, "params": params}
        if self._session:
            call["sessionId"] = self._session
        self._to.write(json.dumps(call).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._count:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def _read(self) -> dict[str, Any]:
        text = b""
        while not text.endswith(b"\0"):
            byte = self._back.read(1)
            assert byte, "chromium has ended"
            text += byte
        message: dict[str, Any] = json.loads(text[:-1])
        return message


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    its_in, to = os.pipe()
    back, its_out = os.pipe()
    options = " ".join([*_OPTIONS, *_QUIET, f"--user-data-dir={folder}", "--remote-debugging-pipe"])
    command = f"exec chromium {options} about:blank 3<&{its_in} 4>&{its_out}"
    environ = {**os.environ, "HOME": str(folder)}
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", command],
            pass_fds=(its_in, its_out),
            env=environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(its_in)
    os.close(its_out)
    browser = Browser(to, back)
    try:
        yield browser
    finally:
        browser.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
