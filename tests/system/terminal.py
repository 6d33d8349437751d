"""A real terminal with a job-control shell in it, where a test types."""

import os
import pty
import re
import select
import subprocess
import sys
import threading
from types import TracebackType

from tests.system.running import Running, environment, until

_CONTROL = {"c": b"\x03", "z": b"\x1a"}
_SHELL = """
import fcntl, os, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv("/bin/bash", ["bash", "--norc", "--noprofile", "-i"])
"""


class Terminal:
    """Leaving it hangs up, as closing a window does."""

    def __init__(self, up: Running, **settings: str) -> None:
        self._up = up
        self._settings = {"TASKGATE_LOG_FORMAT": "auto", "PS1": "$ ", "HISTFILE": "", "TERM": "dumb"} | settings
        self._said = bytearray()
        self._leaving = threading.Event()
        self._listener = threading.Thread(target=self._listen)

    def __enter__(self) -> "Terminal":
        self._master, terminal = pty.openpty()
        self._shell = subprocess.Popen(
            [sys.executable, "-c", _SHELL],
            cwd=self._up.folder,
            env=environment(**self._settings),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._listener.join()
        os.close(self._master)
        self._shell.wait(60)

    @property
    def shell_pid(self) -> int:
        return self._shell.pid

    def run_up(self) -> None:
        self.type(f"{sys.executable} -m taskgate up\n")
        self.until_said("stop    Ctrl-C")
        self._up.output.write_text(self.said())
        self._up.connect()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def press(self, key: str) -> None:
        os.write(self._master, _CONTROL[key])

    def said(self) -> str:
        return self._said.decode(errors="replace")

    def until_said(self, words: str) -> None:
        until(self.said, lambda said: words in said)

    def exit_code(self) -> int:
        """Of the last command, once the prompt is back."""
        self.type("echo exit code=$?.\n")
        found = until(lambda: re.search(r"exit code=(\d+)\.", self.said()), bool)
        assert found
        return int(found[1])

    def _listen(self) -> None:
        while not self._leaving.is_set():
            if select.select([self._master], [], [], 0.05)[0]:
                try:
                    self._said += os.read(self._master, 65536)
                except OSError:  # the shell is gone
                    return
