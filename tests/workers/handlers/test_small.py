"""The small handlers: waits, failures, and the one that will not listen."""

import os
import signal
import subprocess
import sys
import time

import pytest

from taskgate import Retry, handlers
from taskgate.testing import attempt
from workers.handlers.echo import echo
from workers.handlers.fail import FailRequest, OrderError, fail
from workers.handlers.flaky import FlakyRequest, flaky
from workers.handlers.noop import noop
from workers.handlers.random_waits import RandomWaitsRequest, random_waits
from workers.handlers.sleep import SleepRequest, sleep
from workers.handlers.wait import WaitRequest, wait

STUBBORN = """
from taskgate.testing import attempt
from workers.handlers.stubborn import StubbornRequest, stubborn

class Spoken(type(attempt())):
    def progress(self, current, total=None, **more):
        print(current, flush=True)

stubborn(StubbornRequest(), Spoken(task_id="t", task_type="demo.stubborn", number=1))
"""


def test_all_types_load_with_a_description_and_without_the_optional_packages() -> None:
    probe = (
        "import sys; from taskgate import handlers\n"
        "loaded = handlers.load(['workers.handlers'])\n"
        "assert all(one.description for one in loaded.values())\n"
        "print(len(loaded), *sorted({'PIL', 'reportlab'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["12"]


@pytest.mark.usefixtures("own_handlers")
def test_echo_and_noop() -> None:
    assert echo({"any": ["json", 1]}, attempt()) == {"any": ["json", 1]}
    noop(None, attempt())
    assert handlers.load(["workers.handlers"])["demo.noop"].read(b'{"anything": 1}') == {"anything": 1}


def test_sleep_says_that_it_waits_and_for_how_long_it_did() -> None:
    seen = attempt()
    assert sleep(SleepRequest(seconds=0.01), seen) >= 0.01
    assert seen.waits == ["asleep for 0.01 s"]


async def test_wait_reports_each_step() -> None:
    seen = attempt()
    assert await wait(WaitRequest(seconds=0.01, steps=4), seen) == 4
    assert [(one.current, one.total) for one in seen.reported] == [(n, 4) for n in range(5)]


def test_random_waits_keep_their_bounds_spread_and_repeat_by_seed() -> None:
    seen = attempt()
    started = time.monotonic()
    result = random_waits(RandomWaitsRequest(waits=20, max_ms=10, seed=7), seen)

    lengths = [int(one.message.removesuffix(" ms")) for one in seen.reported[1:]]
    assert min(lengths) >= 0
    assert max(lengths) <= 10
    assert len(set(lengths)) > 4
    assert (result.total_ms, result.longest_ms) == (sum(lengths), max(lengths))
    assert time.monotonic() - started >= sum(lengths) / 1000
    assert random_waits(RandomWaitsRequest(waits=20, max_ms=10, seed=7), attempt()) == result


def test_fail_raises_with_a_cause_some_frames_deep() -> None:
    with pytest.raises(OrderError, match="order 7 cannot be billed") as caught:
        fail(FailRequest(order=7), attempt())
    assert isinstance(caught.value.__cause__, KeyError)


def test_flaky_asks_for_a_retry_until_its_turn() -> None:
    with pytest.raises(Retry) as caught:
        flaky(FlakyRequest(succeed_at=3, after_s=2), attempt(number=2))
    assert caught.value.after_s == 2
    assert flaky(FlakyRequest(succeed_at=3), attempt(number=3)) == 3


def test_stubborn_outlives_every_signal_but_sigkill() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "0\n"
            os.kill(process.pid, signal.SIGTERM)
            os.kill(process.pid, signal.SIGINT)  # raises KeyboardInterrupt in it
            assert next(line for line in process.stdout if line != "0\n") == "1\n"
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
