"""Handlers that print, in every way there is."""

import asyncio
import contextlib
import ctypes
import io
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import structlog

from taskgate import Attempt, handler

logger = logging.getLogger("jobs")
libc = ctypes.CDLL(None)

print("while it is imported")


@handler("prints")
def prints(payload: Any, attempt: Attempt) -> None:
    print("print")
    subprocess.run(["sh", "-c", "echo shell"], check=True)
    print("error", file=sys.stderr)
    libc.printf(b"printf\n")
    os.write(1, b"raw\n")
    sys.stdout.buffer.write(b"buffer\n")
    logger.info("info %d", 1)
    attempt.log.warning("careful", n=3, what="a b")
    sys.__stderr__.write("dunder\n")  # type: ignore[union-attr]
    sys.stdout.write("no end of line")


@handler("prints_raw_errors")
def prints_raw_errors(payload: Any) -> None:
    subprocess.run(["sh", "-c", "echo of a program >&2"], check=True)
    os.write(2, b"raw\n")


@handler("raises_in_log")
def raises_in_log(payload: Any) -> None:
    try:
        raise ValueError("oops")
    except ValueError:
        logger.exception("went wrong")


@handler("tells")
def tells(payload: str) -> None:
    """Its name, on all ways, the last without an end."""
    libc.printf(f"{payload} printf\n".encode())
    print(payload, "out")
    print(payload, "err", file=sys.stderr)
    os.write(2, f"{payload} raw err\n".encode())
    logger.warning(payload)
    if len(payload) % 3 == 0:
        subprocess.run(["sh", "-c", f"echo {payload} sh; echo {payload} sh >&2"], check=True)
    libc.printf(f"{payload} end".encode())


@handler("quiet")
def quiet(payload: Any) -> None:
    """Says nothing."""


@handler("prints_and_dies")
def prints_and_dies(payload: str) -> None:
    print("a line")
    print("log line", file=sys.stderr)
    libc.printf(b"from C")
    sys.stdout.write(", and no end of line")
    match payload:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)


@handler("misuses_streams")
def misuses_streams(payload: str) -> None:
    match payload:
        case "close":
            sys.stdout.close()
            sys.stderr.close()
        case "replace":
            sys.stdout = io.StringIO()
            sys.stderr = None
        case "wrap":
            sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-16")
            sys.stderr = io.TextIOWrapper(sys.stderr.detach(), encoding="utf-16")  # type: ignore[union-attr]
            sys.stdout = sys.stderr = None
        case "reconfigure":
            sys.stdout.reconfigure(encoding="utf-16", write_through=False)  # type: ignore[union-attr]
        case "descriptors":
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.close(2)
            os.close(null)
        case "basicConfig":
            logging.basicConfig(force=True, level=50)
        case "disable":
            logging.disable(logging.CRITICAL)
        case "no handlers":
            logging.getLogger().handlers.clear()
        case "disabled":
            logging.getLogger("jobs").disabled = True
        case "structlog":
            structlog.configure(processors=[lambda *_: "lost"], wrapper_class=structlog.BoundLogger)
        case "write":
            sys.stdout.write = len  # type: ignore[method-assign]
        case "closed":
            os.close(1)
            os.close(2)
        case "nonblocking":  # as ssh and node do it to what they inherit
            os.set_blocking(1, False)
            os.set_blocking(2, False)
        case "redirect":
            with contextlib.redirect_stdout(io.StringIO()) as found:
                print("kept for itself")
            print(found.getvalue().upper(), end="")


@handler("floods")
def floods(payload: int, attempt: Attempt) -> None:
    """So many MiB, in numbered lines of 1 KiB."""
    attempt.progress(1)
    rest = " " + "x" * 1013
    for n in range(payload << 10):
        print(f"{n:09}{rest}")


@handler("floods_until")
def floods_until(payload: dict[str, Any]) -> int:
    """So many MiB or more, in numbered lines of 1 KiB, until the file is there; how many lines."""
    rest, n = " " + "x" * 1013, 0
    while n < payload["mib"] << 10 or n % 1024 or not Path(payload["file"]).exists():
        print(f"{n:09}{rest}")
        n += 1
    return n


@handler("floods_both")
def floods_both(payload: int) -> None:
    """So many MiB on each stream."""
    for _ in range(payload << 8):
        print("x" * 4096, end="")
        print("x" * 4096, end="", file=sys.stderr)


@handler("a_program_floods")
def a_program_floods(payload: int) -> None:
    """By one that knows no other way than to wait."""
    subprocess.run([sys.executable, "-c", f"import os; os.write(1, b'x' * ({payload} << 20))"], check=True)


@handler("leaves_a_printer")
def leaves_a_printer(payload: str) -> None:
    subprocess.Popen(["sh", "-c", payload])


@handler("garbage")
def garbage(payload: Any) -> None:
    sys.stdout.buffer.write(bytes(range(256)))
    print("\ud800 \x1b[31mred \x00")


@handler("async_mutes")
async def async_mutes(payload: Any) -> None:
    logging.disable(logging.CRITICAL)


@handler("async_logs")
async def async_logs(payload: Any) -> None:
    logger.info("heard")


@handler("async_waits")
async def async_waits(payload: Any) -> None:
    await asyncio.sleep(3600)


@handler("async_tells")
async def async_tells(payload: str) -> None:
    """Its name, on all ways an async task has, between steps of its neighbours."""

    async def helper() -> None:
        await asyncio.sleep(0.001)
        print(payload, "subtask")

    for _ in range(3):
        print(payload, "out")
        await asyncio.sleep(0)
        print(payload, "err", file=sys.stderr)
        logger.warning(payload)
    await asyncio.create_task(helper())
    await asyncio.to_thread(print, payload, "thread")
    await asyncio.get_running_loop().run_in_executor(None, print, payload, "executor")
    sys.stdout.write(f"{payload} end")


@handler("async_outside")
async def async_outside(payload: Any) -> None:
    """What cannot be told to be its own: C code, and threads that it starts itself."""
    os.write(1, b"from C\n")
    for call, text in ((print, "from a thread"), (logger.warning, 'logged\n{"message": "forged"}')):
        thread = threading.Thread(target=call, args=(text,))
        thread.start()
        thread.join()


@handler("async_floods")
async def async_floods(payload: int, attempt: Attempt) -> None:
    """So many MiB, without a pause."""
    line = "x" * 1023
    for n in range(payload << 10):
        print(line)
        if n == payload << 9:
            attempt.progress(n)


@handler("async_dies")
async def async_dies(payload: Any) -> None:
    print("a line, ", end="")
    sys.stdout.write("and no end of line")
    os._exit(3)


@handler("tells_shortly")
def tells_shortly(payload: str) -> None:
    libc.printf(f"{payload} C\n".encode())
    print(payload, "out")
    print(payload, "err", file=sys.stderr)
    sys.stdout.write(payload)
