"""Many open streams on one front: how old events are when they arrive, what a stream costs."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

from loadtest import machine
from loadtest.client import NUMBER
from loadtest.measures import Run, Sizes, Watch
from loadtest.services import NOOP, Service
from loadtest.valkey import Durability, serving


def open_streams(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`streams`: sizes.streams of them on a tenth as many tasks, each of which tells its progress twice a second."""
    tasks = sizes.streams // 10
    with serving(durability) as valkey, service.running(valkey) as running:
        ids = [running.submit(NOOP.replace(NUMBER, str(n))) for n in range(tasks)]
        options = ["--tasks", str(tasks), "--streams", str(sizes.streams), "--seconds", str(sizes.load_s * 2)]
        with (
            _helper("tell", valkey.url, *options, "--per-s", str(2 * tasks)) as teller,
            _helper("read", running.url, *options) as reader,
        ):
            _expect(teller, "claimed")
            before = running.app.rss_bytes()
            _say(reader, *ids)
            _expect(reader, "open")
            each = (running.app.rss_bytes() - before) / sizes.streams
            watch = Watch(running, valkey, sizes)
            _say(teller, "go")
            told = _answer(teller)
            _say(reader, "enough")
            read = _answer(reader)
            costs = watch.costs(int(read["blocks"]))
        figures = {f"age_{name}": read[name] for name in ("p50_ms", "p99_ms", "worst_ms")}
        figures |= {"per_s": told["per_s"], "bytes": each, "blocks": read["blocks"], "wrong": read["closed"]}
        yield watch.run("streams", service, durability, figures | costs)  # with the helpers reaped, they count as ours


@contextlib.contextmanager
def _helper(what: str, url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "loadtest.streaming", what, url, *options]
    pipe = subprocess.PIPE
    environ = machine.clean_environ()
    with subprocess.Popen(argv, cwd=machine.ROOT, env=environ, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _say(process: subprocess.Popen[str], *lines: str) -> None:
    assert process.stdin is not None
    process.stdin.write("".join(f"{line}\n" for line in lines))
    process.stdin.flush()


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != word:
        raise OSError(f"{word} was expected, not {line!r}")


def _answer(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise OSError("a helper of the streams ended early")
    answer: dict[str, float] = json.loads(line)
    return answer
