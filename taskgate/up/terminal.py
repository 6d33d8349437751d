"""What `up` says to the person at its terminal, and what it does when nobody is there any more."""

import os
import stat


def say(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError:  # nobody reads it any more
        _silence(1)


def leave() -> None:
    """The terminal has hung up: every further write to it would fail."""
    for descriptor in (0, 1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):  # isatty denies it by now
            _silence(descriptor)


def _silence(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor)
    os.close(null)
