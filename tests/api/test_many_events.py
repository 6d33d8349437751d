"""`GET /events?task=…`: many tasks on one stream, each event once but in the millisecond from which it is resumed."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence

import httpx
import httpx_sse
import pytest

from app.door import Door
from taskgate.contract.ids import new_task_id
from taskgate.contract.models import Claimed
from taskgate.contract.states import FINAL
from tests.api.conftest import Served, Worker, client_of, next_ms, submit
from tests.api.test_events import Follower, client
from tests.conftest import eventually


@pytest.fixture
async def http(shared_gateway: Served, worker: Worker) -> AsyncIterator[httpx.AsyncClient]:
    async with client(await shared_gateway.started()) as http:
        yield http


class Many(Follower):
    """Follows several tasks at once."""

    def __init__(self, http: httpx.AsyncClient, ids: Sequence[str], seen: str = "", more: str = "") -> None:
        super().__init__(http, "", {"Last-Event-ID": seen} if seen else {}, path=path_of(ids, more))

    def of(self, task_id: str) -> list[str]:
        return [event.event for event in self.events if event.json()["task_id"] == task_id]


def path_of(ids: Sequence[str], more: str = "") -> str:
    return "/events?" + "&".join(f"task={each}" for each in ids) + more


async def running(http: httpx.AsyncClient, worker: Worker, count: int) -> list[Claimed]:
    for _ in range(count):
        await submit(http)
    return await worker.claim(count)


async def story(worker: Worker, task_id: str) -> list[int]:
    """The seq of every kept event."""
    return [event.seq for event in await worker.store.events(task_id)]


async def test_two_lives_are_told_as_one_story(http: httpx.AsyncClient, worker: Worker) -> None:
    ids = [(await submit(http))["id"] for _ in range(2)]
    stream = Many(http, ids)
    await eventually(lambda: _count(stream, "snapshot"), lambda count: count == 2)
    one, other = await worker.claim(2)
    for number in range(3):
        await worker.report(one, events=[("custom", b'{"n":%d}' % number)])
        await worker.report(other, events=[("custom", b'{"n":%d}' % number)])
    await worker.finish(one)
    await eventually(lambda: _count(stream, "end"), lambda count: count == 1)
    await worker.report(other, progress=b'{"current":1,"percent":50.0}')
    await stream.until("progress")
    await worker.finish(other, "failed", error=b'{"kind":"exception"}')
    await stream.all()

    alike = ["snapshot", "status", "custom", "custom", "custom"]
    assert stream.of(one.id) == [*alike, "status", "end"]
    assert [name for name in stream.of(other.id) if name != "progress"] == [*alike, "status", "end"]
    stamps = [int(event.id.split("-")[0]) for event in stream.events if event.id]
    assert stamps == sorted(stamps), "ids never go back: one resumes all"
    whole = [event.event for event in stream.events if event.id.endswith(f"-{(1 << 64) - 1}")]
    assert whole == ["end"], "only the last says that nothing of its millisecond is missing"
    ends = [event.json() for event in stream.events if event.event == "end"]
    assert [(end["task_id"], end["id"], end["status"]) for end in ends] == [
        (one.id, one.id, "succeeded"),
        (other.id, other.id, "failed"),
    ]
    done = await http.get(path_of(ids), headers={"Last-Event-ID": stream.events[-1].id})
    assert (done.status_code, done.content) == (204, b"")


async def _count(stream: Follower, name: str) -> int:
    return stream.names.count(name)


async def test_resumed_from_any_id_nothing_is_missing_and_only_one_millisecond_comes_twice(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    tasks = await running(http, worker, 4)
    ids = [task.id for task in tasks]
    stream = Many(http, ids)
    await stream.until("snapshot")
    for number, task in enumerate(itertools.islice(itertools.cycle(tasks), 30)):
        await worker.report(task, events=[("custom", b'{"n":%d}' % number)] * (number % 3))
    for task in tasks:
        await worker.finish(task)
    events = await stream.all()
    whole = {task_id: await story(worker, task_id) for task_id in ids}
    for cut in range(1, len(events)):
        before, seen = events[:cut], next((event.id for event in reversed(events[:cut]) if event.id), "")
        if not seen:
            continue
        after = await Many(http, ids, seen).all()
        known = _seqs(before)
        for task_id in ids:
            assert known[task_id] | _seqs(after)[task_id] >= set(whole[task_id][1:]), (cut, seen)
        twice = [one for one in after if one.id and one.json()["seq"] in known[one.json()["task_id"]]]
        assert {one.id.split("-")[0] for one in twice} <= {seen.split("-")[0]}, "only what lies in its millisecond"
        ended = {one.json()["task_id"] for one in [*before, *after] if one.event == "end"}
        assert ended == set(ids)
        assert not [one for one in after if one.event in ("snapshot", "gap")]


async def test_many_events_after_an_id_that_lies_between_are_no_gap(http: httpx.AsyncClient, worker: Worker) -> None:
    one, other = await running(http, worker, 2)
    between = f"{await worker.store.now_ms()}-0"
    await worker.report(one, events=[("custom", b'{"n":%d}' % number) for number in range(60)])
    await worker.finish(one)
    await worker.finish(other)
    told = Many(http, [one.id, other.id], between)
    await told.all()
    assert told.names.count("custom") == 60
    assert "gap" not in told.names


def _seqs(events: Sequence[httpx_sse.ServerSentEvent]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.event not in ("snapshot", "end"):
            found[event.json()["task_id"]].add(event.json()["seq"])
    return found


async def test_a_late_subscriber_gets_the_whole_story_in_order(http: httpx.AsyncClient, worker: Worker) -> None:
    tasks = await running(http, worker, 3)
    for number in range(9):
        await worker.report(tasks[number % 3], events=[("custom", b'{"n":%d}' % number)] * 2)
    await worker.finish(tasks[0])
    await next_ms(worker.store)  # what lies in the millisecond of its beginning belongs to a stream
    late, live = Many(http, [task.id for task in tasks]), Many(http, [task.id for task in tasks], more="&from=now")
    for stream in (late, live):
        await stream.until("end")
    for task in tasks[1:]:
        await worker.finish(task)
    for stream in (late, live):
        await stream.all()
        assert stream.names[:3] == ["snapshot"] * 3
        assert (stream.names.count("gap"), stream.names.count("end")) == (0, 3)
    numbers = [event.json()["n"] for event in late.events if event.event == "custom"]
    assert sorted(numbers) == [number for number in range(9) for _ in range(2)]
    assert "custom" not in live.names


async def test_what_is_no_id_of_this_stream_is_a_gap_and_the_story_anew(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    [task] = await running(http, worker, 1)
    await worker.report(task, events=[("custom", b"{}")])
    await worker.finish(task)
    for seen in ("x", "99999999999999-0", "0-0", "-1", "x" * 5_000):
        stream = Many(http, [task.id], seen)
        events = await stream.all()
        assert [event.event for event in events] == ["gap", "snapshot", "custom", "end"], seen


async def test_what_was_trimmed_is_a_gap_of_that_task_alone(http: httpx.AsyncClient, worker: Worker) -> None:
    one, other = await running(http, worker, 2)
    seen = (await worker.store.events(one.id))[0].id
    for _ in range(10):
        await worker.report(one, events=[("custom", b'{"name":"many"}')] * 100)
    await worker.report(other, events=[("custom", b'{"name":"few"}')])
    for task in (one, other):
        await worker.finish(task)
    stream = Many(http, [one.id, other.id], seen)
    await stream.all()
    assert stream.of(one.id)[:2] == ["gap", "snapshot"]
    assert [name for name in stream.of(other.id) if name != "status"] == ["custom", "end"]


async def test_tasks_of_others_and_unknown_ones_are_refused_before_the_stream_starts(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    own = (await submit(http))["id"]
    for ids, code in (
        ([own, new_task_id()], 404),
        ([own, "*"], 404),
        ([], 400),
        ([own] * 101, 400),
    ):
        answer = await http.get(path_of(ids))
        assert (answer.status_code, answer.headers["content-type"]) == (code, "application/problem+json"), ids


async def test_who_resumes_goes_on_with_those_that_are_still_there(http: httpx.AsyncClient, worker: Worker) -> None:
    done, going = await running(http, worker, 2)
    ids = [done.id, going.id]
    stream = Many(http, ids)
    await worker.finish(done)
    await stream.until("end")
    await stream.hang_up()
    seen = next(event.id for event in reversed(stream.events) if event.id)
    assert (await http.delete(f"/tasks/{done.id}")).status_code == 204

    again = Many(http, ids, seen)
    gone = await again.until("gone")
    assert gone.json()["task_id"] == done.id
    await worker.finish(going)
    await again.all()
    assert (again.names, again.of(done.id)) == (["gone", "status", "end"], ["gone"])
    assert (await http.get(path_of(ids))).status_code == 404, "to begin with, each must be there"
    last = next(event.id for event in reversed(again.events) if event.id)
    assert (await http.get(path_of(ids), headers={"Last-Event-ID": last})).status_code == 204
    assert (await http.get(path_of(ids, f"&after={last}"))).status_code == 204, "as on the stream of one"
    await http.delete(f"/tasks/{going.id}")
    assert (await http.get(path_of(ids), headers={"Last-Event-ID": last})).status_code == 404


async def test_another_tenants_tasks_are_not_there(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(tenant_header="X-Tenant")) as http:
        ids = {}
        for tenant in ("a", "b"):
            http.headers["X-Tenant"] = tenant
            ids[tenant] = (await submit(http))["id"]
        for path in (f"/tasks/{ids['a']}/events", path_of([ids["a"]]), path_of([ids["b"], ids["a"]])):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found"), path


async def test_a_hundred_tasks_and_each_end_once(http: httpx.AsyncClient, worker: Worker) -> None:
    tasks = await running(http, worker, 100)
    stream = Many(http, [task.id for task in tasks])
    await eventually(lambda: _count(stream, "snapshot"), lambda count: count == 100)
    for task in tasks:
        await worker.report(task, events=[("custom", b"{}")])
    await asyncio.gather(*(worker.finish(task) for task in tasks))
    await stream.all()
    for task in tasks:
        assert stream.of(task.id) == ["snapshot", "custom", "status", "end"]
    assert {event.json()["status"] for event in stream.events if event.event == "end"} < FINAL
