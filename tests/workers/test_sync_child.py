"""A sync child: whatever a handler does becomes the end of that task, and of that task only."""

import asyncio
import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import cpu_s, state_of
from tests.workers.conftest import UNSENDABLE, WITHIN_S, Watched, claimed, error, reported, until
from workers import wire
from workers.slot import StopReason, boot_ns

Child = Callable[..., Watched]


async def test_it_says_what_it_serves(child: Child) -> None:
    watched = await child().ready()

    (ready,) = watched.of(wire.Ready)
    served = {one.type: one for one in ready.handlers}

    info = served["order"].type_info()
    assert info.kind == "sync"
    assert json.loads(bytes(info.schema))["required"] == ["item"]
    assert len(info.schema_hash) == 16
    assert served["async.echo"].type_info().kind == "async"
    assert served["eats"].type_info().memory_limit_mb == 160


async def test_a_result_comes_back(child: Child) -> None:
    watched = await child().ready()

    done = await watched.run("order", {"item": "tea", "count": 2})

    assert (done.outcome, json.loads(done.result)) == ("succeeded", {"item": "tea", "count": 3})
    assert done.run_ns > 0
    assert done.cpu_ns is not None


async def test_payloads_and_results_of_any_size_travel(child: Child) -> None:
    watched = await child().ready()

    for size in (0, 1, 65_000, 66_000, 900_000):
        done = await watched.run("echo", "z" * size)
        assert (done.outcome, len(done.result)) == ("succeeded", size + 2)


async def test_the_attempt_knows_its_task(child: Child) -> None:
    watched = await child().ready()
    task = claimed("facts", attempt=3, checkpoint=b'{"page": 7}', timeout_s=3600)
    seq = watched.process.hand_over(task, deadline_ns=boot_ns() + 10**10)
    assert seq

    seen = json.loads((await watched.done(seq)).result)

    assert seen["id"] == seen["key"] == task.id
    assert (seen["number"], seen["resume_from"], seen["cancel_requested"]) == (3, {"page": 7}, False)
    assert 3590 < seen["remaining_s"] <= 3600


async def test_reports_arrive_before_the_end_and_in_order(child: Child) -> None:
    watched = await child().ready()

    seq = watched.hand("reports")
    done = await watched.done(seq)

    assert [type(one) for one in watched.messages if getattr(one, "seq", 0) == seq] == [
        wire.Emitted,
        wire.Checkpoint,
        wire.Done,
    ]
    assert watched.of(wire.Emitted)[0].data == b'{"number":3}'
    assert watched.of(wire.Checkpoint)[0].data == b'{"page":3}'
    assert done.progress is not None
    assert (done.progress.current, done.progress.total, done.progress.message) == (3, 4, "drawn")
    (submitted,) = done.submitted
    assert (submitted.type, submitted.delay_s) == ("child", 2)


async def test_what_a_failed_attempt_submitted_is_dropped(child: Child) -> None:
    watched = await child().ready()

    done = await watched.run("submits_and_fails")

    assert (done.outcome, done.submitted) == ("failed", [])


async def test_the_progress_of_one_task_is_not_that_of_the_next(child: Child) -> None:
    watched = await child().ready()
    await watched.run("reports")

    assert (await watched.run("echo", 1)).progress is None


async def test_a_thread_left_behind_cannot_report_for_the_next_task(child: Child) -> None:
    watched = await child(slots=2).ready()
    await watched.run("late_reporter")
    seq = watched.hand("shows", 60)
    await reported(watched, seq)
    seen = set()
    for _ in range(200):
        progress = watched.process.sample().tasks[seq].progress
        seen.add(progress and progress.message)
        await asyncio.sleep(0.001)

    assert seen == {"mine"}


@pytest.mark.parametrize(
    ("payload", "kind", "may_retry"),
    [
        ("value", "exception", True),
        ("exit", "exception", True),
        ("interrupt", "exception", True),
        ("recursion", "exception", True),
        ("memory", "memory", True),
        ("fail", "exception", False),
    ],
)
async def test_what_a_handler_raises_fails_its_task_only(
    child: Child, payload: str, kind: str, may_retry: bool
) -> None:
    watched = await child().ready()

    done = await watched.run("raises", payload)

    assert (done.outcome, error(done)["kind"], done.may_retry) == ("failed", kind, may_retry)
    assert (await watched.run("echo", 1)).outcome == "succeeded"


async def test_a_traceback_starts_in_the_handler(child: Child) -> None:
    watched = await child().ready()

    trace = error(await watched.run("raises", "value"))["traceback"]

    assert trace.splitlines()[1].endswith("in raises")
    assert trace.rstrip().endswith("ValueError: wrong")


async def test_a_handler_asks_for_another_attempt(child: Child) -> None:
    watched = await child().ready()

    done = await watched.run("raises", "retry")

    assert (done.outcome, done.retry_after_s, error(done)["message"]) == ("retry", 2.5, "busy")


async def test_retry_on_names_what_is_worth_another_attempt(child: Child) -> None:
    watched = await child().ready()

    assert (await watched.run("picky", "again")).may_retry
    assert not (await watched.run("picky", "never")).may_retry


async def test_a_payload_that_does_not_fit_is_named_but_not_shown(child: Child) -> None:
    watched = await child().ready()

    done = await watched.run("order", {"item": "tea", "count": "SECRET-MARKER"})

    assert (done.outcome, error(done)["kind"], done.may_retry) == ("failed", "invalid_payload", False)
    assert error(done)["errors"][0]["pointer"] == "#/count"
    assert b"SECRET-MARKER" not in done.error


async def test_a_whole_number_written_with_a_point_is_an_integer(child: Child) -> None:
    """JSON schema says so, and the door has let it in."""
    watched = await child().ready()

    done = await watched.run("order", raw=b'{"item": "tea", "count": 2.0}')

    assert json.loads(done.result)["count"] == 3


async def test_an_unknown_type_fails(child: Child) -> None:
    watched = await child().ready()

    assert error(await watched.run("nobody"))["kind"] == "unknown_type"


@pytest.mark.parametrize("what", ["nan", "infinity", "object", "large", "deep", "surrogate"])
async def test_a_result_that_is_none_fails_that_task_only(child: Child, what: str) -> None:
    watched = await child().ready()

    done = await watched.run("returns", what)

    assert (done.outcome, error(done)["kind"], done.may_retry) == ("failed", "result", False)
    assert (await watched.run("returns", "medium")).outcome == "succeeded"


@pytest.mark.parametrize(("what", "kind"), UNSENDABLE)
async def test_an_end_that_cannot_be_sent_fails_that_task_only(child: Child, what: str, kind: str) -> None:
    watched = await child().ready()

    done = await watched.run("ends_badly", what)

    assert (done.outcome, error(done)["kind"], done.submitted) == ("failed", kind, [])
    assert json.loads((await watched.run("echo", 1)).result) == 1


async def test_a_result_without_a_descriptor_to_send_it_by_is_tried_again(child: Child) -> None:
    watched = await child().ready()

    done = await watched.run("ends_badly", "no descriptors")

    assert (done.outcome, error(done)["kind"], done.may_retry) == ("failed", "result", True)


async def test_a_retry_that_was_tampered_with_follows_the_type(child: Child) -> None:
    done = await (await child().ready()).run("asks_wrongly")

    assert (done.outcome, done.retry_after_s) == ("retry", None)


async def test_a_result_must_fit_its_annotation(child: Child) -> None:
    watched = await child().ready()

    assert error(await watched.run("returns_wrong"))["kind"] == "result"


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [(StopReason.CANCEL, "canceled"), (StopReason.TIMEOUT, "timeout"), (StopReason.DRAIN, "drained")],
)
async def test_a_stop_ends_the_handler(child: Child, reason: StopReason, outcome: str) -> None:
    watched = await child().ready()
    seq = watched.hand("forever")
    await reported(watched, seq)

    watched.process.soft_stop(seq, reason)

    assert (await watched.done(seq)).outcome == outcome


async def test_a_timeout_is_an_error_of_its_own_kind(child: Child) -> None:
    watched = await child().ready()
    seq = watched.hand("forever")
    await reported(watched, seq)

    watched.process.soft_stop(seq, StopReason.TIMEOUT)

    assert error(await watched.done(seq))["kind"] == "timeout"


@pytest.mark.parametrize(
    ("task_type", "outcome"),
    [("cleans_up", "succeeded"), ("asks_again_when_stopped", "retry"), ("breaks_when_stopped", "canceled")],
)
async def test_what_the_handler_says_to_a_stop(child: Child, task_type: str, outcome: str) -> None:
    """A result or a Retry wins; an exception that came of the stop does not."""
    watched = await child().ready()
    seq = watched.hand(task_type, "")
    await reported(watched, seq)

    watched.process.soft_stop(seq, StopReason.CANCEL)

    assert (await watched.done(seq)).outcome == outcome


async def test_a_handler_that_looks_can_stop_by_itself(child: Child) -> None:
    watched = await child().ready()
    seq = watched.hand("waits_for")
    await reported(watched, seq)

    watched.process.soft_stop(seq, StopReason.CANCEL)

    assert (await watched.done(seq)).outcome in ("succeeded", "canceled")


async def test_a_child_takes_no_task_beside_threads_of_a_stopped_one(child: Child) -> None:
    watched = await child(slots=2).ready()
    await watched.run("leaves", ["thread"])  # of a task that was not stopped: allowed
    stopped, after = watched.hand("leaves_a_thread_when_stopped"), watched.hand("echo", 1)
    await reported(watched, stopped)

    watched.process.soft_stop(stopped, StopReason.TIMEOUT)
    done = await watched.done(stopped)
    assert (done.outcome, done.left_running) == ("timeout", True)

    await watched.exited
    assert watched.process.received() == stopped
    assert watched.process.outstanding == {after}


async def test_a_stop_at_any_moment_is_heard(child: Child) -> None:
    """Also at the one just before the handler is called."""
    watched = await child(slots=2).ready()
    for n in range(100):
        seq = watched.hand("limited_forever")
        while watched.process.running() != seq:
            pass
        strikes_ns = boot_ns() + n % 50 * 10_000
        while boot_ns() < strikes_ns:
            pass
        watched.process.soft_stop(seq, StopReason.CANCEL)
        assert (await watched.done(seq)).outcome == "canceled", n


async def test_a_stop_is_raised_once(child: Child) -> None:
    """Whoever cleans up is not interrupted by the same request."""
    watched = await child().ready()
    seq = watched.hand("cleans_up_slowly", 0.2)
    await reported(watched, seq)

    while not watched.of(wire.Done, seq):
        watched.process.soft_stop(seq, StopReason.TIMEOUT)
        await asyncio.sleep(0.01)

    assert (await watched.done(seq)).result == b'"cleaned up"'


async def test_a_stop_never_hits_the_next_task(child: Child) -> None:
    """Stops sent at every moment of a short task, while the next one already waits."""
    watched = await child(slots=2).ready()
    for round_number in range(300):
        victim = watched.hand("sleeps", 0.0005)
        bystander = watched.hand("sleeps", 0.0005)
        await asyncio.sleep(round_number % 15 / 10_000)
        watched.process.soft_stop(victim, StopReason.CANCEL)
        assert (await watched.done(victim)).outcome in ("succeeded", "canceled")
        assert (await watched.done(bystander)).outcome == "succeeded"


async def test_a_task_that_was_stopped_before_it_started_is_not_run(child: Child) -> None:
    watched = await child(slots=2).ready()
    first = watched.hand("cleans_up", "")
    second = watched.hand("shows", 0)
    await reported(watched, first)

    watched.process.soft_stop(second, StopReason.CANCEL)
    watched.process.soft_stop(first, StopReason.CANCEL)

    assert (await watched.done(first)).outcome == "succeeded"
    done = await watched.done(second)
    assert (done.outcome, done.progress) == ("canceled", None)


async def test_a_handler_that_swallows_every_stop_is_killed(child: Child) -> None:
    watched = await child().ready()
    seq = watched.hand("never_stops")
    await reported(watched, seq)
    for _ in range(3):
        watched.process.soft_stop(seq, StopReason.TIMEOUT)
        await asyncio.sleep(0.01)
    assert not watched.of(wire.Done)

    watched.process.kill()

    assert (await watched.exited).signal == signal.SIGKILL
    assert watched.process.outstanding == {seq}
    assert watched.process.take_back() == []


async def test_past_its_lease_a_task_is_not_started(child: Child) -> None:
    watched = await child().ready()

    seq = watched.process.hand_over(claimed("echo"), deadline_ns=boot_ns() - 1)

    await watched.until(lambda: watched.of(wire.Refused, seq))
    assert watched.process.outstanding == set()


@pytest.mark.parametrize(
    ("how", "code", "killed_by"), [("exit", 7, None), ("segv", None, signal.SIGSEGV), ("kill", None, signal.SIGKILL)]
)
async def test_a_death_names_code_or_signal(child: Child, how: str, code: int | None, killed_by: int | None) -> None:
    watched = await child().ready()
    seq = watched.hand("dies", how)

    ended = await watched.exited

    assert (ended.code, ended.signal) == (code, killed_by)
    assert watched.process.outstanding == {seq}
    assert ("in dies" in ended.stack) == (how == "segv")


@pytest.mark.parametrize("death_is_noticed_first", [False, True])
async def test_what_a_child_sent_before_it_died_wins(
    child: Child, tmp_path: Path, death_is_noticed_first: bool
) -> None:
    watched = await child().ready()
    if death_is_noticed_first:
        asyncio.get_running_loop().remove_reader(watched.process._socket)
    seq = watched.hand("dies_after", str(tmp_path / "go"))
    # Without a turn of the loop: its end is there and unread when it dies.
    assert select.select([watched.process._socket], [], [], WITHIN_S)[0]
    (tmp_path / "go").touch()
    os.waitid(os.P_PID, watched.process.pid, os.WEXITED | os.WNOWAIT)

    ended = await watched.exited

    assert ended.code == 9
    assert (await watched.done(seq)).outcome == "succeeded"


async def test_a_handler_that_forks_ends_once(child: Child) -> None:
    watched = await child().ready()

    assert (await watched.run("forks")).outcome == "succeeded"

    for _ in range(50):
        try:
            done = await watched.run("pid")
        except AssertionError:
            assert watched.exited.done()  # on a busy machine the copy still lived when it looked
            break
        assert json.loads(done.result) == watched.process.pid


@pytest.mark.parametrize("task_type", ["pool", "spawned_pool"])
async def test_multiprocessing_works_in_a_handler(child: Child, task_type: str) -> None:
    watched = await child().ready()

    done = await watched.run(task_type, 3)

    assert (done.outcome, done.result) == ("succeeded", b"[3,2,1]")


async def test_what_a_handler_started_dies_with_its_child(child: Child) -> None:
    watched = await child().ready()
    seq = watched.hand("starts_a_shell")
    grandchild = int((await reported(watched, seq)).current)

    watched.process.kill()
    await watched.exited

    await until(lambda: not _alive(grandchild))


async def test_the_group_of_a_child_that_died_by_itself_goes_too(child: Child) -> None:
    watched = await child().ready()
    seq = watched.hand("starts_a_shell")
    grandchild = int((await reported(watched, seq)).current)

    os.kill(watched.process.pid, signal.SIGKILL)
    await watched.exited

    await until(lambda: not _alive(grandchild))


async def test_a_memory_limit_fails_one_run_with_its_kind(child: Child) -> None:
    watched = await child().ready()

    over = await watched.run("eats", 200)
    under = await watched.run("eats", 20)
    unlimited = await watched.run("eats_freely", 200)

    assert (over.outcome, error(over)["kind"]) == ("failed", "memory")
    assert (under.outcome, unlimited.outcome) == ("succeeded", "succeeded")


async def test_while_the_gil_is_held_the_child_is_seen_working(child: Child) -> None:
    watched = await child().ready()
    seq = watched.hand("holds_the_gil", 26)
    await reported(watched, seq)

    sample = watched.process.sample()
    stack = await watched.process.dumps.take(seq, WITHIN_S)

    assert sample.running == seq
    assert "in holds_the_gil" in stack
    assert not watched.of(wire.Done)


async def test_a_stop_waits_for_the_gil_holder(child: Child) -> None:
    """The signal is taken when the C call is over; killing does not wait."""
    watched = await child().ready()
    seq = watched.hand("holds_the_gil", 26)
    await reported(watched, seq)
    used_s = cpu_s(watched.process.pid)
    await until(lambda: cpu_s(watched.process.pid) > used_s + 0.05)  # it is inside the C call

    watched.process.soft_stop(seq, StopReason.TIMEOUT)
    assert watched.process.sample().running == seq
    watched.process.kill()

    assert (await watched.exited).signal == signal.SIGKILL


async def test_the_last_task_is_followed_by_the_exit(child: Child) -> None:
    watched = await child(slots=2).ready()
    seq = watched.hand("echo", 1, last=True)
    behind = watched.hand("echo", 2)

    assert (await watched.done(seq)).outcome == "succeeded"
    assert (await watched.exited).code == 0
    assert watched.process.take_back() == [behind]


async def test_told_to_finish_it_ends_what_it_has(child: Child) -> None:
    watched = await child(slots=2).ready()
    first, second = watched.hand("sleeps", 0.05), watched.hand("echo", 1)

    assert watched.process.finish()

    assert (await watched.exited).code == 0
    assert (await watched.done(first)).outcome == (await watched.done(second)).outcome == "succeeded"


async def test_finishing_does_not_wait_for_threads_of_handlers(child: Child) -> None:
    watched = await child().ready()
    await watched.run("leaves", ["stubborn thread"])

    watched.process.finish()

    assert (await asyncio.wait_for(watched.exited, WITHIN_S)).code == 0


async def test_a_start_that_fails_is_explained(child: Child) -> None:
    watched = child(handlers=("tests.workers.no_such_module",))

    assert (await watched.exited).code == 1
    (failed,) = watched.of(wire.StartFailed)
    assert "no_such_module" in failed.error
    assert watched.process.hand_over(claimed("echo"), deadline_ns=boot_ns() + 10**10) is None


async def test_child_start_runs_before_the_first_task(child: Child) -> None:
    watched = await child().ready()

    assert (await watched.run("starts")).result == b'["sync"]'


async def test_secrets_of_the_service_are_not_in_its_environment(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TASKGATE_REDIS_URL", "TASKGATE_API_KEY", "TASKGATE_URL", "SECRET"):
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("PYTHONPATH", "/the/users/own")
    watched = await child().ready()

    seen = json.loads((await watched.run("sees")).result)

    assert seen["taskgate"] == ["TASKGATE_URL"]
    assert seen["environment"]["SECRET"] == "value"
    assert seen["pythonpath"] == "/the/users/own"
    assert "TASKGATE_REDIS_URL" not in _proc(watched.process.pid, "environ")


async def test_it_yields_to_the_processes_that_keep_the_promises(child: Child) -> None:
    watched = await child().ready()
    pid = watched.process.pid

    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert _oom_score(pid) == min(1000, _oom_score(os.getpid()) + 500)


def _oom_score(pid: int) -> int:
    return int(_proc(pid, "oom_score_adj"))


def _alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z")


def _proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()
