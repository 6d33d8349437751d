"""Where is it: the stack of a task, its own and no other's, whatever its code does; and why there is none."""

import asyncio
import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from taskgate.contract.models import Claimed
from taskgate.contract.stacks import Thread
from tests.workers.conftest import JOBS, WITHIN_S, Watched, claimed, reported, stacks_of, until
from workers import dumps, stops
from workers import stacks as module
from workers.blame import Verdict, judge
from workers.children import Exit
from workers.dumps import obstacle
from workers.holdings import Holding, Holdings
from workers.slot import StopReason
from workers.stacks import Found
from workers.stops import Stops
from workers.wire import Done, Message, TaskStack

HERE = "tests.workers.stack_jobs"
LONG = (pytest.mark.full, pytest.mark.timeout(200))
Child = Callable[..., Watched]


class Asked:
    """A child, what it was given, and what is known of where that is."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.holdings = Holdings()
        self.stacks = stacks_of(self.holdings)
        self.stops = Stops(self.holdings, self.stacks, lambda _: {}, paused_ns=lambda: 0)
        watched.heard = self._heard

    def _heard(self, message: Message) -> None:
        if isinstance(message, TaskStack):
            self.stacks.heard(self.watched.process, message)

    def hand(self, task_type: str, payload: object = None, *, tenant: str = "default") -> Holding:
        task: Claimed = claimed(task_type, payload, tenant=tenant)
        holding = Holding(task)
        self.holdings.add(holding)
        seq = self.watched.hand(task_type, payload)
        self.holdings.assign(holding, self.watched.process, seq)
        return holding

    async def runs(self, task_type: str, payload: object = None, *, tenant: str = "default") -> Holding:
        holding = self.hand(task_type, payload, tenant=tenant)
        await reported(self.watched, holding.seq)
        return holding

    async def found(self, holding: Holding) -> Found:
        _, found = await self.stacks.of(holding)
        return found

    async def ended(self, holding: Holding) -> Done | Exit:
        await self.watched.until(lambda: self.watched.of(Done, holding.seq) or self.watched.exited.done())
        ends: list[Done] = self.watched.of(Done, holding.seq)
        return ends[0] if ends else await self.watched.exited

    def told(self, holding: Holding, how: Done | Exit) -> str:
        """What the error of the attempt carries."""
        if isinstance(how, Done):
            return self.stacks.of_end(holding)
        return self.stacks.of_death(holding, self.watched.process, how)


@pytest.fixture
def asked(child: Child) -> Callable[..., Asked]:
    return lambda kind, slots=4: Asked(child(kind, slots=slots, handlers=(JOBS, HERE)))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a child says is waited for, however long it has no CPU, also before it is killed."""
    monkeypatch.setattr(module, "DUMP_S", WITHIN_S)
    monkeypatch.setattr(stops, "KILL_S", WITHIN_S)
    monkeypatch.setattr(dumps, "LOST_S", WITHIN_S)


async def holds_the_loop(it: Asked, holding: Holding) -> None:
    """Until it is in there: after its first step the loop still answers."""

    def current() -> float:
        task = it.watched.process.sample().tasks[holding.seq]
        return task.progress.current if task.progress else 0

    await until(lambda: current() == 2)


async def ready(asked: Asked) -> Asked:
    await asked.watched.ready()
    return asked


def functions(thread: Thread) -> list[str]:
    return [frame.function for frame in thread.frames]


async def test_a_sync_tasks_stack_begins_where_it_is_and_ends_at_its_handler(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    it = await ready(asked("sync"))
    holding = await it.runs("stands", str(tmp_path / "go"))
    behind = it.hand("stands", str(tmp_path / "go on"))

    first, again, other = await asyncio.gather(it.found(holding), it.found(holding), it.found(behind))

    assert (first.source, first.reason, first.shared) == ("faulthandler", None, False)
    assert first is again, "who asks at the same time gets the same"
    assert first.threads is not None
    main, *others = first.threads
    assert (main.current, functions(main)[-3:]) == (True, ["inner", "outer", "stands"])
    assert [name for one in others for name in functions(one) if name == "beside"] == ["beside"]
    assert not any(one.current for one in others)
    assert other == Found(reason="not_begun"), "one task's stack is never another's"

    (tmp_path / "go").touch()
    await reported(it.watched, behind.seq)
    await until(lambda: not it.stacks._flights)
    assert await it.found(holding) == Found(reason="ended")
    (tmp_path / "go on").touch()
    assert isinstance(await it.ended(behind), Done)


async def test_of_a_deep_stack_the_innermost_frames_are_shown_and_asking_without_faulthandler_kills_nobody(
    asked: Callable[..., Asked],
) -> None:
    it = await ready(asked("sync"))
    holding = await it.runs("deep", 150)
    found = await it.found(holding)
    assert found.threads is not None
    assert (len(found.threads[0].frames), found.threads[0].truncated) == (100, True)
    it.watched.process.soft_stop(holding.seq, StopReason.CANCEL)
    await it.ended(holding)

    assert (await it.watched.run("disarmed")).outcome == "succeeded"


@pytest.mark.parametrize(
    ("kind", "count"),
    [("sync", 12), *(pytest.param(kind, 200, marks=LONG) for kind in ("sync", "async"))],
)
async def test_whenever_it_is_asked_for_a_stack_is_that_of_its_task(
    asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    """Short tasks, pipelined or side by side, each with a function of its own."""
    monkeypatch.setattr(module, "SHARED_S", 0)
    it = await ready(asked(kind))
    todo, live = list(range(count)), dict[int, Holding]()
    seen = 0
    while todo or live:
        while todo and it.watched.process.load < 4:
            number = todo.pop(0)
            live[number] = it.hand("only" if kind == "sync" else "async.only", number)
        number, holding = random.choice(list(live.items()))
        found = await it.found(holding)
        functions_seen = set(re.findall(r"only_[0-9]+", str(found.threads)))
        assert found.shared or functions_seen <= {f"only_{number}"}
        seen += found.threads is not None
        await asyncio.sleep(0)
        live = {n: one for n, one in live.items() if not it.watched.of(Done, one.seq)}
    assert seen > count / 20


async def test_a_stopped_child_is_said_to_be_paused_and_one_that_took_the_signal_lives_on(
    asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARED_S", 0)
    it = await ready(asked("sync"))
    holding = await it.runs("takes_the_signal")

    assert await it.found(holding) == Found(reason="signal_taken")

    os.kill(it.watched.process.pid, signal.SIGSTOP)
    await until(lambda: obstacle(it.watched.process.pid) == "paused")
    await until(lambda: not it.stacks._flights)
    assert await it.found(holding) == Found(reason="paused")
    os.kill(it.watched.process.pid, signal.SIGCONT)
    assert it.watched.process.exit is None
    holding.leave_child()
    await until(lambda: not it.stacks._flights)
    assert await it.found(holding) == Found(reason="ended")


async def test_a_handler_may_use_the_usual_signals(asked: Callable[..., Asked]) -> None:
    it = await ready(asked("sync"))
    holding = await it.runs("has_signals_of_its_own")

    found = await it.found(holding)

    assert found.threads is not None
    assert functions(found.threads[0])[-1] == "has_signals_of_its_own"
    assert not it.watched.of(Done)


@pytest.mark.parametrize(
    ("threads", "reason"), [("main", None), ("all", "signal_taken")], ids=["main thread", "all threads"]
)
async def test_a_blocked_signal_is_seen_at_once_if_no_other_thread_takes_it(
    asked: Callable[..., Asked], threads: str, reason: str | None
) -> None:
    it = await ready(asked("sync"))
    holding = await it.runs("blocks_the_signal", threads)

    found = await asyncio.wait_for(it.found(holding), WITHIN_S / 2)

    assert found.reason == reason
    assert reason or (found.threads and functions(found.threads[0]) == ["blocks_the_signal"])


async def test_an_async_tasks_stack_is_its_coroutines_and_what_they_have_started(
    asked: Callable[..., Asked], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOP_S", WITHIN_S)
    it = await ready(asked("async"))
    holding = await it.runs("async.stands", str(tmp_path / "go"))
    await it.runs("async.neighbour")

    told = await it.found(holding)

    assert (told.source, told.shared) == ("loop", False)
    assert told.threads is not None
    by_name = {one.name: one for one in told.threads}
    handler, *others = told.threads
    assert (handler.name, handler.current, functions(handler)) == ("handler", True, ["Own.__await__", "async_stands"])
    assert sorted(handler.awaits) == ["call", "walk"]
    assert functions(by_name["walk"])[-3:] == ["sleep", "steps", "walks"]
    assert functions(by_name["call"])[-2:] == ["to_thread", "calls"]
    assert functions(by_name["idle"])[-1] == "idles"
    [thread] = [one for one in others if one.name.startswith("thread")]
    assert "beside" in functions(thread)
    assert "neighbours_secret" not in str(told.threads)
    (tmp_path / "go").touch()


async def test_a_loop_that_does_not_answer_is_seen_from_outside_and_its_stack_is_the_tasks_that_holds_it(
    asked: Callable[..., Asked],
) -> None:
    it = await ready(asked("async"))
    waits, foreign = await it.runs("async.neighbour"), await it.runs("async.neighbour", tenant="other")
    holds = await it.runs("async.holds", 60)
    await holds_the_loop(it, holds)

    own, others, another = await asyncio.gather(it.found(holds), it.found(waits), it.found(foreign))

    assert (own.source, own.shared) == ("faulthandler", False)
    assert own.threads is not None
    assert functions(own.threads[0])[-2:] == ["holds_the_loop", "async_holds"]
    assert (others.shared, others.threads) == (True, own.threads), "it waits for the same loop, and that is said"
    assert another == Found(reason="another_task"), "another tenant's is nobody's business"


@pytest.mark.parametrize(
    ("kind", "task_type", "payload", "where"),
    [
        pytest.param("sync", "forever", None, "forever", marks=pytest.mark.full),
        ("sync", "never_stops", None, "never_stops"),
        pytest.param("async", "async.sleeps", 60, "async_sleeps", marks=pytest.mark.full),
        ("async", "async.swallows_elsewhere", None, "before_the_stop"),
        ("async", "async.holds", 60, "holds_the_loop"),
    ],
)
async def test_a_timeout_carries_the_stack_of_that_moment(
    asked: Callable[..., Asked], kind: str, task_type: str, payload: object, where: str
) -> None:
    it = await ready(asked(kind))
    if kind == "async":
        await it.runs("async.neighbour")
    holding = await it.runs(task_type, payload)
    if task_type == "async.holds":
        await holds_the_loop(it, holding)

    it.stops.stop(holding, StopReason.TIMEOUT, kill=False)
    if task_type in ("never_stops", "async.swallows_elsewhere", "async.holds"):
        if task_type != "async.holds":  # that is asked when it is killed
            await until(lambda: holding.stack or (holding.dump and holding.dump.done()))
        it.stops._kill(holding, it.watched.process)
    told = it.told(holding, await it.ended(holding))

    assert f" in {where}\n" in told + "\n"
    assert "after_the_stop" not in told
    assert "neighbours_secret" not in told
    assert "_run_module_as_main" not in told


async def test_what_is_killed_for_its_memory_says_where_it_was(asked: Callable[..., Asked], tmp_path: Path) -> None:
    it = await ready(asked("sync"))
    holding = await it.runs("stands", str(tmp_path / "go"))

    it.stops.over_memory(holding, 1 << 30, 10)
    how = await it.ended(holding)

    assert isinstance(how, Exit)
    assert (how.signal, holding.killed) == (signal.SIGKILL, True)
    assert " in inner\n" in it.told(holding, how)


async def test_what_cannot_say_where_it_is_is_killed_all_the_same(asked: Callable[..., Asked]) -> None:
    it = await ready(asked("sync"))
    holding = await it.runs("takes_the_signal")

    it.stops.over_memory(holding, 1 << 30, 10)
    how = await it.ended(holding)

    assert isinstance(how, Exit)
    assert (how.signal, it.told(holding, how)) == (signal.SIGKILL, "")


@pytest.mark.parametrize(
    ("kind", "task_type"), [pytest.param("sync", "segfaults", marks=pytest.mark.full), ("async", "async.segfaults")]
)
async def test_a_native_crash_says_what_it_was_and_where(
    asked: Callable[..., Asked], kind: str, task_type: str
) -> None:
    it = await ready(asked(kind))
    holding = it.hand(task_type, "itself")
    told = it.told(holding, await it.ended(holding))

    assert told.startswith("Fatal Python error: Segmentation fault\nMainThread (most recent call first):\n")
    assert " in segfault\n" in told


async def test_a_crash_in_a_thread_is_not_taken_for_the_task_that_was_being_stepped(
    asked: Callable[..., Asked],
) -> None:
    it = await ready(asked("async"))
    holds = await it.runs("async.neighbour")
    threads = it.hand("async.segfaults", "in a thread")
    how = await it.watched.exited

    assert judge(it.watched.process, [holds, threads], how, paused=False) == Verdict([], known=False)
