"""Waiting and watching: by streams, by polls while there is none, and back; never an older state, nothing twice."""

import re
import time
from typing import Any

import pytest

from taskgate import client as sdk
from taskgate.client import Client, Event, calls
from taskgate.client import following as module
from taskgate.client.following import Doubles, after
from tests.cli.conftest import TASK_ID, Answer, Receiver, answer, hang_up, problem, silent, stream
from tests.cli.drivers import CLIENTS
from tests.cli.test_client import event

OTHER_ID = TASK_ID[:-1] + "c"
RUNNING = {"id": TASK_ID, "type": "t", "status": "running", "version": 3, "poll_after_ms": 10}
ENDED = {**RUNNING, "status": "succeeded", "version": 9, "poll_after_ms": None}


@pytest.fixture(params=CLIENTS)
def client(receiver: Receiver, request: pytest.FixtureRequest) -> Any:
    return CLIENTS[request.param](receiver.url, patience_s=60)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stream is tried again before all has been told, however slow the machine is."""
    monkeypatch.setattr(module, "_STREAM_AGAIN_S", (60.0, 60.0))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next stream is tried at once."""
    monkeypatch.setattr(module, "_STREAM_AGAIN_S", (0.02, 0.02))


def paths(receiver: Receiver) -> list[str]:
    return [request.path.removeprefix(f"/tasks/{TASK_ID}") for request in receiver.requests]


def test_a_wait_is_one_stream(client: Any, receiver: Receiver) -> None:
    receiver.answers.append(
        stream(event("snapshot", {**RUNNING, "seq": 3}, at="1-0") + event("end", {**ENDED, "seq": 9}, at="2-0"))
    )
    with client:
        assert client.wait(TASK_ID) == ENDED
    assert paths(receiver) == ["/events?from=now"]


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(problem(429, "too-many-streams", Retry_After="60"), id="too many"),
        pytest.param(problem(403, "forbidden"), id="forbidden by a proxy"),
        pytest.param(answer(200, b"<html>", Content_Type="text/html"), id="no stream at all"),
        pytest.param(hang_up, id="cut"),
        pytest.param(stream(""), id="empty"),
    ],
)
@pytest.mark.usefixtures("late")
def test_without_a_stream_it_is_polled(client: Any, receiver: Receiver, refused: Answer) -> None:
    receiver.answers += [refused, answer(200, RUNNING), answer(304), answer(200, ENDED)]
    with client:
        assert client.wait(TASK_ID) == ENDED
    assert paths(receiver) == ["/events?from=now", "?wait=30", "?wait=30", "?wait=30"]
    assert [request.headers.get("if-none-match") for request in receiver.requests[1:]] == [None, 'W/"3"', 'W/"3"']


@pytest.mark.usefixtures("late")
def test_polls_ask_with_the_tag_that_they_got_and_tell_what_has_no_version(client: Any, receiver: Receiver) -> None:
    lost = answer(200, {**RUNNING, "health": "lost"}, ETag='W/"3-lost"')
    receiver.answers += [hang_up, answer(200, RUNNING, ETag='W/"3"'), lost, answer(304, ETag='W/"3-lost"')]
    receiver.answers += [answer(200, ENDED, ETag='W/"9"')]
    with client:
        told = [task.get("health") for task in client.watch(TASK_ID)]
    assert told == [RUNNING.get("health"), "lost", ENDED.get("health")]
    tags = [request.headers.get("if-none-match") for request in receiver.requests if "wait=" in request.path]
    assert tags == [None, 'W/"3"', 'W/"3-lost"', 'W/"3-lost"']


def test_an_end_whose_last_block_was_lost_is_asked_for(client: Any, receiver: Receiver) -> None:
    told = event("snapshot", {**RUNNING, "seq": 3}) + event("status", {"status": "succeeded", "seq": 9})
    receiver.answers += [stream(told), answer(200, {**ENDED, "result_url": "/r"})]
    with client:
        assert client.wait(TASK_ID)["result_url"] == "/r"
    assert receiver.requests[1].headers["if-none-match"] == 'W/"3"'
    assert paths(receiver)[1] == "?wait=1", "held no longer than until the next stream"


def test_an_end_is_told_whole_and_without_the_error_of_an_attempt_before(client: Any, receiver: Receiver) -> None:
    error = {"kind": "exception", "message": "boom"}
    done = {**ENDED, "attempt": 2, "error": None, "result_url": "/r", "progress": {"percent": 100}}
    told = [
        event("snapshot", {**RUNNING, "seq": 3}),
        event("status", {"status": "retrying", "attempt": 1, "error": error, "seq": 4}),
        event("status", {"status": "running", "attempt": 2, "seq": 5}),
        event("status", {"status": "succeeded", "attempt": 2, "seq": 9}),
        event("end", {**done, "seq": 9}),
    ]
    receiver.answers.append(stream("".join(told)))
    with client:
        seen = list(client.watch(TASK_ID))
    assert [task["status"] for task in seen] == ["running", "retrying", "running", "succeeded"]
    assert seen[-1] == {**seen[-1], **done}


@pytest.mark.usefixtures("soon")
def test_polls_give_way_to_a_stream_again(client: Any, receiver: Receiver) -> None:
    slow = {**RUNNING, "poll_after_ms": 60_000}  # once for each time without a stream
    later = {"status": "running", "seq": 2}
    receiver.answers += [
        stream(event("snapshot", {**slow, "version": 1, "seq": 1}, at="1-0")),
        answer(200, slow),
        problem(503, "service-draining"),
        answer(304),
        stream(event("status", later, at="2-0") + event("progress", {"current": 5, "seq": 4}, at="4-0")),
        answer(200, {**slow, "version": 5, "progress": {"current": 6}}),
        stream(event("end", {**ENDED, "seq": 9}, at="9-0")),
    ]
    with client:
        seen = list(client.watch(TASK_ID))
    assert [task["version"] for task in seen] == [1, 3, 4, 5, 9]
    assert [(task.get("progress") or {}).get("current") for task in seen] == [None, None, 5, 6, 6]
    ids = [request.headers.get("last-event-id") for request in receiver.requests if "/events" in request.path]
    assert ids == [None, "1-0", "1-0", "4-0"]


def test_a_task_that_is_not_there_is_told_at_once(client: Any, receiver: Receiver) -> None:
    receiver.answers.append(problem(404, "not-found"))
    with client, pytest.raises(sdk.NotFound):
        client.wait(TASK_ID)


def test_a_service_that_stays_away_ends_the_wait(receiver: Receiver) -> None:
    receiver.answers += [hang_up] * 50
    begun = time.monotonic()
    with Client(receiver.url, patience_s=0.3) as client, pytest.raises(sdk.Unreachable):
        client.wait(TASK_ID)
    assert time.monotonic() - begun < 30


def test_a_wait_ends_in_time(client: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_LAST_LOOK_S", 30)  # none of its looks is given up, however slow the machine is
    receiver.answers += [answer(200, RUNNING)] * 1000
    begun = time.monotonic()
    with client, pytest.raises(TimeoutError) as caught:
        client.wait(TASK_ID, timeout_s=0.3)
    assert isinstance(caught.value, sdk.StillRunning)
    assert caught.value.task["status"] == "running"
    assert 0.3 <= time.monotonic() - begun < 20
    assert set(paths(receiver)) == {""}


TIMES_S = (0.6, 3.0, 9.0)
"""The longer ones are for a machine that was too slow for what is tried to come to pass in a shorter one."""


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("seen", [True, False])
def test_a_wait_ends_in_time_though_no_answer_comes(kind: str, receiver: Receiver, seen: bool) -> None:
    for timeout_s in TIMES_S:
        receiver.requests.clear()
        receiver.answers[:] = [answer(200, RUNNING), silent] if seen else [silent]
        begun = time.monotonic()
        with CLIENTS[kind](receiver.url, timeout_s=40) as client, pytest.raises(sdk.StillRunning) as caught:
            client.wait(TASK_ID, timeout_s=timeout_s)
        assert timeout_s <= time.monotonic() - begun < timeout_s + 20, "the client's own timeout is 40 s"
        if len(receiver.requests) == 1 + seen and bool(caught.value.task.get("status")) == seen:
            break
    assert re.search(r"its time is over: .* did not answer in time", str(caught.value))
    assert caught.value.task.get("status") == ("running" if seen else None)
    assert isinstance(caught.value.__cause__, sdk.Unreachable)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("timeout_s", [0, 0.3])
def test_a_wait_ends_in_time_though_nobody_listens(kind: str, timeout_s: float) -> None:
    begun = time.monotonic()
    with CLIENTS[kind]("http://127.0.0.1:1", patience_s=30) as client, pytest.raises(sdk.StillRunning, match="reached"):
        client.wait(TASK_ID, timeout_s=timeout_s)
    assert timeout_s <= time.monotonic() - begun < 20


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_wait_ends_in_time_though_the_service_says_later(kind: str, receiver: Receiver) -> None:
    for timeout_s in TIMES_S:
        receiver.requests.clear()
        receiver.answers[:] = [problem(503, "service-draining", Retry_After="50")]
        begun = time.monotonic()
        with CLIENTS[kind](receiver.url, patience_s=90) as client, pytest.raises(sdk.StillRunning) as caught:
            client.wait(TASK_ID, timeout_s=timeout_s)
        assert timeout_s <= time.monotonic() - begun < timeout_s + 20
        if "did not answer in time" not in str(caught.value):
            break
    assert "service-draining" in str(caught.value)
    assert len(receiver.requests) == 1 or timeout_s > TIMES_S[0], "never earlier than Retry-After"


@pytest.mark.parametrize(("timeout_s", "least", "most"), [(20, 3, 19), (200, 30, 30)])
def test_a_wait_with_a_limit_has_the_service_hold_its_polls(
    client: Any, receiver: Receiver, timeout_s: float, least: int, most: int
) -> None:
    receiver.answers += [answer(200, RUNNING), answer(200, ENDED)]
    with client:
        assert client.wait(TASK_ID, timeout_s=timeout_s) == ENDED
    first, second = (int(path.removeprefix("?wait=")) for path in paths(receiver))
    assert least <= second <= first <= most


def test_polls_keep_the_pace_that_the_service_asks_for(client: Any, receiver: Receiver) -> None:
    slow = {**RUNNING, "poll_after_ms": 200}
    receiver.answers += [answer(200, slow), answer(200, slow), answer(200, ENDED)]
    begun = time.monotonic()
    with client:
        assert client.wait(TASK_ID, timeout_s=20) == ENDED
    assert time.monotonic() - begun >= 0.4


@pytest.mark.parametrize(
    ("status", "kind"), [("failed", sdk.TaskFailed), ("canceled", sdk.TaskCanceled), ("expired", sdk.TaskExpired)]
)
def test_a_checked_wait_raises_what_became_of_it(receiver: Receiver, status: str, kind: type[Exception]) -> None:
    error = {"kind": "crash", "message": "gone"} if status == "failed" else None
    receiver.answers += [answer(200, {**ENDED, "status": status, "error": error})] * 2
    with Client(receiver.url) as client:
        assert client.wait(TASK_ID, timeout_s=60)["status"] == status
        with pytest.raises(kind, match="crash: gone" if error else status):
            client.wait(TASK_ID, timeout_s=60, check=True)


def test_several_tasks_share_a_stream(client: Any, receiver: Receiver) -> None:
    first = event("snapshot", {**RUNNING, "task_id": TASK_ID, "seq": 3})
    ends = [event("end", {"id": one, "task_id": one, "status": "succeeded", "seq": 9}) for one in (TASK_ID, OTHER_ID)]
    receiver.answers += [stream("retry: 10\n\n" + first + ends[0]), stream(ends[0] + ends[1])]
    with client:
        found = list(client.events(TASK_ID, OTHER_ID, TASK_ID))
    assert [(one.name, one.task_id) for one in found] == [("snapshot", TASK_ID), ("end", TASK_ID), ("end", OTHER_ID)]
    assert receiver.requests[0].path == f"/events?task={TASK_ID}&task={OTHER_ID}"


def test_a_story_that_begins_anew_after_a_gap_is_told_once(client: Any, receiver: Receiver) -> None:
    own = [event("custom", {"seq": n, "n": n}, at=f"{n}-0") for n in range(3, 7)]
    receiver.answers += [
        stream("retry: 10\n\n" + event("snapshot", {**RUNNING, "seq": 3}) + own[0] + own[1]),
        stream(event("gap", {"detail": "…"}) + event("snapshot", {**RUNNING, "seq": 5}) + "".join(own)),
        stream(event("end", {**ENDED, "seq": 9}, at="9-0")),
    ]
    with client:
        found = list(client.events(TASK_ID))
    assert [one.name for one in found if one.name != "custom"] == ["snapshot", "gap", "snapshot", "end"]
    assert [one.data["n"] for one in found if one.name == "custom"] == [3, 4, 5, 6]


def test_a_gap_of_all_is_told(client: Any, receiver: Receiver) -> None:
    ends = [event("end", {"id": one, "task_id": one, "status": "succeeded", "seq": 9}) for one in (TASK_ID, OTHER_ID)]
    receiver.answers += [stream(event("gap", {}) + ends[0] + ends[1])] * 2
    with client:
        assert [one.task_id for one in client.events(TASK_ID, OTHER_ID)] == ["", TASK_ID, OTHER_ID]
        assert [one["id"] for one in client.watch(TASK_ID, OTHER_ID)] == [TASK_ID, OTHER_ID]


def test_one_of_several_that_was_deleted_does_not_keep_the_others(client: Any, receiver: Receiver) -> None:
    gone = event("gone", {"task_id": TASK_ID})
    end = event("end", {"id": OTHER_ID, "task_id": OTHER_ID, "status": "succeeded", "seq": 9})
    receiver.answers += [stream(gone + end)] * 2
    with client:
        assert [one.name for one in client.events(TASK_ID, OTHER_ID)] == ["gone", "end"]
        assert [one["id"] for one in client.watch(TASK_ID, OTHER_ID)] == [OTHER_ID]
    assert len(receiver.requests) == 2


@pytest.mark.parametrize("data", ["[]", "1", "hello"])
@pytest.mark.parametrize("task_ids", [(TASK_ID,), (TASK_ID, OTHER_ID)])
def test_a_stream_of_another_service_is_told_apart(receiver: Receiver, data: str, task_ids: tuple[str, ...]) -> None:
    receiver.answers.append(stream(f"event: snapshot\ndata: {data}\n\n"))
    with Client(receiver.url, patience_s=0) as client, pytest.raises(sdk.Unreachable, match="Taskgate"):
        list(client.events(*task_ids))


@pytest.mark.parametrize("count", [0, 101])
def test_a_stream_has_room_for_a_hundred(receiver: Receiver, count: int) -> None:
    with Client(receiver.url) as client, pytest.raises(ValueError, match="1 to 100"):
        list(client.events(*map(str, range(count))))


def test_doubles_are_dropped_by_task_and_seq_however_many_share_one() -> None:
    def own(seq: int, n: int, task_id: str = TASK_ID) -> Event:
        return Event("", "gap" if n == 3 else "custom", {"seq": seq, "n": n}, task_id)

    sent = [own(4, 1), own(5, 2), own(5, 3), own(5, 4), own(7, 5), own(5, 6, OTHER_ID), own(7, 7)]
    for cut in range(len(sent) + 1):
        doubles = Doubles()
        doubles.expect()
        got = [one.data["n"] for one in sent[:cut] if not doubles.has(one)]
        doubles.expect()
        again = sent[max(0, cut - 4) :]
        assert got + [one.data["n"] for one in again if not doubles.has(one)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("name", "data", "version"),
    [
        ("status", {"seq": 3, "status": "queued"}, 3),
        ("progress", {"seq": 2, "current": 1}, 3),
        ("snapshot", {"seq": 2, "version": 2, "status": "queued"}, 3),
        ("snapshot", {"seq": 3, "version": 3, "health": "starved"}, 3),
        ("status", {"seq": 4, "status": "canceling"}, 4),
        ("status", {"seq": 4, "status": "canceled"}, 3),
        ("custom", {"seq": 4, "name": "mine"}, 3),
    ],
)
def test_an_event_moves_a_task_forward_only(name: str, data: dict[str, Any], version: int) -> None:
    before: Any = {**RUNNING, "progress": {"current": 7}}
    found = after(before, Event("", name, data, TASK_ID))
    assert found["version"] == version
    assert found["status"] == ("canceling" if version == 4 else "running")
    assert found.get("health") == data.get("health")
    assert found["id"] == TASK_ID


def test_a_new_status_leaves_nothing_of_the_last_one() -> None:
    before: Any = {**RUNNING, "progress": {"current": 7}, "stage": "starting a child", "health": "stalled"}
    found = after(before, Event("", "status", {"seq": 4, "status": "retrying"}, TASK_ID))
    assert [found.get(name) for name in ("progress", "stage", "health")] == [None] * 3
    same = after(before, Event("", "status", {"seq": 4, "status": "running"}, TASK_ID))
    assert same.get("progress") == {"current": 7}


def test_a_stream_that_is_left_is_closed(receiver: Receiver) -> None:
    receiver.answers += [stream(event("snapshot", RUNNING, at="1-0")), answer(200, RUNNING)]
    with Client(receiver.url) as client:
        found = client.events(TASK_ID)
        assert next(found).name == "snapshot"
        found.close()
        assert client.get(TASK_ID)["status"] == "running"
