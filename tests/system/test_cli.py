"""The client commands against a real gateway and real workers."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from tests.conftest import Server, eventually
from tests.system.rig import Rig, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def taskgate(rig: Rig, *args: str) -> Result:
    """In a thread of this process: a start costs more than what most commands do."""
    from taskgate.cli.app import app

    return await asyncio.to_thread(CliRunner().invoke, app, [*args, "--url", rig.url])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(module_server: Server, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """One for all tests here: they look only at tasks of their own."""
    async with serving(module_server, tmp_path_factory.mktemp("service")) as rig:
        yield rig


async def test_a_task_from_submission_to_its_end(service: Rig) -> None:
    waited = await taskgate(service, "submit", "cpu", '{"ms": 1}', "--wait")
    assert waited.exit_code == 0, waited
    assert int(waited.stdout) > 0

    failed = await taskgate(service, "submit", "fails", "{}", "--watch")
    assert failed.exit_code == 1
    assert "as asked" in failed.stderr

    task_id = failed.stderr.split()[1]
    listed = await taskgate(service, "dead-letters", "--json")
    assert task_id in [task["id"] for task in json.loads(listed.stdout)]
    assert "as asked" in (await taskgate(service, "dead-letters")).stdout

    redriven = await taskgate(service, "redrive", task_id)
    assert redriven.exit_code == 0, redriven
    await service.ended(task_id)
    shown = await taskgate(service, "status", task_id)
    assert shown.exit_code == 1
    assert "as asked" in shown.stdout


async def test_cancel_ends_a_running_task_and_refuses_an_ended_one(service: Rig) -> None:
    task_id = await service.submit("sleeper", {"ms": 60_000})
    await service.running(task_id)

    assert (await taskgate(service, "cancel", task_id)).stdout == "canceling\n"
    assert (await service.ended(task_id))["status"] == "canceled"
    assert (await taskgate(service, "status", task_id)).exit_code == 4

    succeeded = await service.submit("cpu", {"ms": 1})
    await service.ended(succeeded)
    refused = await taskgate(service, "cancel", succeeded)
    assert refused.exit_code == 7
    assert "409 not-cancelable" in refused.stderr


async def test_queues_are_shown_as_they_fill_and_empty(service: Rig) -> None:
    task_ids = [await service.submit("sleeper", {"ms": 60_000}) for _ in range(6)]

    async def shown() -> dict[str, int]:
        [found] = json.loads((await taskgate(service, "queues", "default", "--json")).stdout)["items"]
        return {state: found[state] for state in ("queued", "running")}

    async def told() -> str:
        return (await taskgate(service, "queues")).stdout

    # One child may still be starting.
    await eventually(shown, lambda queue: queue == {"queued": 4, "running": 2}, within_s=60)
    words = await eventually(told, lambda words: "default: 4 queued" in words)
    assert "queue-tasks" in words
    assert "type sleeper" in words
    for task_id in task_ids:
        await taskgate(service, "cancel", task_id)
    await eventually(shown, lambda queue: not sum(queue.values()), within_s=60)


async def test_a_refused_submission_says_what_is_wrong_and_where(service: Rig) -> None:
    unknown = await taskgate(service, "submit", "no.such.type", "{}")
    wrong = await taskgate(service, "submit", "cpu", '{"ms": "soon"}')
    for done, pointer in ((unknown, "#/type"), (wrong, "#/payload/ms")):
        assert done.exit_code == 7
        assert f"{pointer}: " in done.stderr
        assert len(done.stderr.splitlines()) == 1


async def test_the_same_idempotency_key_is_the_same_task(service: Rig) -> None:
    one, other = [await taskgate(service, "submit", "cpu", '{"ms": 1}', "--idempotency-key", "k") for _ in range(2)]
    assert one.exit_code == 0
    assert one.stdout == other.stdout


@pytest.mark.full
async def test_watch_goes_on_when_the_gateway_is_replaced(service: Rig) -> None:
    """Every change once and no gap, over a gateway that was killed and one that drained."""
    task_id = await service.submit("sleeper", {"ms": 60_000})
    await service.running(task_id)
    watching, words = [await watch(service, task_id, *more) for more in (["--json"], [])]
    assert watching.stdout is not None
    assert words.stdout is not None
    first = json.loads(await watching.stdout.readline())
    assert first["event"] == "snapshot"
    assert b"running" in await words.stdout.readline()

    for sig in (signal.SIGKILL, signal.SIGTERM):
        service.processes[-1].send_signal(sig)
        await asyncio.to_thread(service.processes.pop().wait)
        await service.gateway()
    assert (await taskgate(service, "cancel", task_id)).exit_code == 0

    out, _ = await watching.communicate()
    events = [first, *map(json.loads, out.splitlines())]
    assert watching.returncode == 4
    changes = [(event["data"]["seq"], event["data"]["status"]) for event in events if event["event"] == "status"]
    assert changes == sorted(set(changes))
    assert [status for _, status in changes] == ["canceling", "canceled"]
    assert [event["event"] for event in events].count("end") == 1
    assert not any(event["event"] == "gap" for event in events)
    out, _ = await words.communicate()
    assert (words.returncode, out.splitlines()[-1]) == (4, f"{task_id}  sleeper  canceled".encode())


async def watch(service: Rig, *args: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "taskgate", "watch", *args, "--retry-for", "60", "--url", service.url]
    return await asyncio.create_subprocess_exec(*command, env=service.environment(), stdout=PIPE, stderr=PIPE)


async def test_ctrl_c_ends_the_watching_alone(service: Rig) -> None:
    task_id = await service.submit("sleeper", {"ms": 60_000})
    await service.running(task_id)
    watching = await watch(service, task_id)
    assert watching.stdout is not None
    await watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, said = await watching.communicate()
    assert (watching.returncode, said) == (130, b"taskgate: interrupted; tasks go on\n")
    assert (await service.task(task_id))["status"] == "running"
    await taskgate(service, "cancel", task_id)


async def test_list_finds_by_what_a_task_was_submitted_with_and_delete_removes_it(service: Rig) -> None:
    ids = [await service.submit("cpu", {"ms": 1}, metadata={"batch": "b7"}) for _ in range(3)]
    for task_id in ids:
        await service.ended(task_id)
    found = await taskgate(service, "list", "--metadata", "batch=b7", "--status", "succeeded", "--json")
    assert [task["id"] for task in json.loads(found.stdout)] == ids[::-1]
    shown = (await taskgate(service, "list", "--type", "cpu", "--limit", "1")).stdout.splitlines()
    assert shown[1].split()[1:4] == ["cpu", "succeeded", "1/30"]

    assert (await taskgate(service, "delete", ids[0], ids[1])).exit_code == 0
    assert (await taskgate(service, "delete", ids[0])).exit_code == 6
    left = await taskgate(service, "list", "--metadata", "batch=b7", "--json")
    assert [task["id"] for task in json.loads(left.stdout)] == ids[2:]


async def test_workers_shows_a_whole_pool(service: Rig) -> None:
    async def rows() -> list[dict[str, Any]]:
        return list(json.loads((await taskgate(service, "workers", "--json")).stdout))

    async def words() -> list[str]:
        return (await taskgate(service, "workers")).stdout.splitlines()[1].split()[:3]

    (worker,) = await eventually(rows, lambda rows: bool(rows) and rows[0]["whole"], within_s=60)
    # What it says of itself is as of its last beat: an earlier test's child may be found to be missing since.
    await eventually(words, lambda words: words == [worker["id"], "ready", "yes"], within_s=60)
