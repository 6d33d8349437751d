"""`POST /tasks`: what a 202 says, and every refusal before anything is queued."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import httpx
import pytest

from app.door import Door
from taskgate.contract import ids
from taskgate.contract.limits import MAX_DEPTH
from taskgate.contract.models import Claimed
from taskgate.contract.store import Store
from tests.api.conftest import Worker, client_of, submit
from tests.conftest import eventually

JSON = {"content-type": "application/json"}


async def nothing_is_queued(store: Store) -> bool:
    return not any((await store.usage(0)).values())


async def test_accepted_says_where_to_follow_the_task(http: httpx.AsyncClient, worker: Worker) -> None:
    answer = await http.post(
        "/tasks", content=b'{"type":"echo","payload":{"text":"hi"},"metadata":{"order":7}}', headers=JSON
    )
    task = answer.json()
    assert answer.status_code == 202
    assert ids.is_task_id(task["id"])
    assert answer.headers["location"] == answer.headers["operation-location"] == f"/tasks/{task['id']}"
    assert answer.headers["x-task-id"] == task["id"]
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-request-id"]
    assert (task["status"], task["version"], task["attempt"], task["poll_after_ms"]) == ("queued", 1, 0, 500)
    assert (task["queue"], task["priority"], task["timeout_s"], task["max_attempts"]) == ("default", 5, 60, 3)
    assert task["metadata"] == {"order": 7}
    [claimed] = await worker.claim()
    assert (claimed.id, claimed.payload) == (task["id"], b'{"text":"hi"}')
    assert claimed.spec.schema == "v1"
    assert claimed.spec.request_id == answer.headers["x-request-id"]


@pytest.mark.parametrize("more", [{}, {"metadata": {"a": 1}}, {"queue": "other", "priority": 9, "max_attempts": 7}])
async def test_accepted_says_what_a_read_says(http: httpx.AsyncClient, more: dict[str, Any]) -> None:
    """A plain task's 202 is made from another's JSON; it must be the same as the one that is read."""
    accepted = await submit(http, **more)
    read = (await http.get(f"/tasks/{accepted['id']}")).json()
    created = [datetime.fromisoformat(task.pop("created_at")) for task in (accepted, read)]
    assert abs(created[0] - created[1]) < timedelta(seconds=30)
    assert accepted.pop("queue_position") is None
    assert read.pop("queue_position") == 0
    # The 202 has not looked who could run it; a read has.
    assert accepted.pop("stage") == "waiting for a worker"
    assert read.pop("stage") == ("waiting for a worker" if "queue" in more else "waiting for room to run")
    assert accepted == read


async def test_options_reach_the_task(http: httpx.AsyncClient, worker: Worker) -> None:
    run_at = datetime.now(UTC) + timedelta(hours=1)
    later = await submit(http, run_at=run_at.isoformat(), priority=9, timeout_s=5, max_attempts=1, deadline_s=7200)
    delayed = await submit(http, delay_s=60)
    for task in (later, delayed):
        read = (await http.get(f"/tasks/{task['id']}")).json()
        assert read["status"] == task["status"] == "scheduled"
    read = (await http.get(f"/tasks/{later['id']}")).json()
    assert abs(datetime.fromisoformat(read["scheduled_at"]) - run_at) < timedelta(seconds=1)
    assert datetime.fromisoformat(read["deadline_at"]) - datetime.fromisoformat(read["created_at"]) == timedelta(
        hours=2
    )
    assert (read["priority"], read["timeout_s"], read["max_attempts"]) == (9, 5, 1)
    assert await worker.claim() == []


@pytest.mark.parametrize("way", ["delay_s", "run_at", "neither"])
async def test_a_delay_that_was_asked_for_is_no_wait_in_the_queue(
    http: httpx.AsyncClient, worker: Worker, live_store: Store, way: str
) -> None:
    run_at = (datetime.now(UTC) + timedelta(seconds=0.4)).isoformat()
    options: dict[str, dict[str, Any]] = {"delay_s": {"delay_s": 0.4}, "run_at": {"run_at": run_at}, "neither": {}}
    await submit(http, **options[way])

    async def claimed() -> list[Claimed]:
        await live_store.promote(0)
        return await worker.claim()

    [task] = await eventually(claimed, bool, within_s=60)
    due = task.created_ms + 400 if way == "delay_s" else datetime.fromisoformat(run_at).timestamp() * 1000
    # A busy machine may submit it when it is due already.
    ready_ms = task.created_ms if way == "neither" else max(task.created_ms, due)
    assert task.queue_wait_ms is not None
    assert task.queue_wait_ms == pytest.approx(task.claimed_ms - ready_ms, abs=1)


async def test_the_payload_is_kept_as_sent(http: httpx.AsyncClient, worker: Worker) -> None:
    payload = '{ "b":1.0, "a" : [1e2,"\\u00e9é😀"],\n"big":123456789012345678901234567890 }'.encode()
    answer = await http.post("/tasks", content=b'{"type":"any","payload":' + payload + b"}", headers=JSON)
    assert answer.status_code == 202
    [claimed] = await worker.claim()
    assert claimed.payload == payload


REFUSED: list[tuple[bytes, int, str, str | None]] = [
    # F01: what is not a number
    (b'{"type":"any","payload":NaN}', 400, "invalid-json", None),
    (b'{"type":"any","payload":[Infinity]}', 400, "invalid-json", None),
    (b'{"type":"any","payload":-Infinity}', 400, "invalid-json", None),
    (b'{"type":"any","payload":{"a":[1e999]}}', 422, "validation-error", "#/payload"),
    (b'{"type":"any","payload":-' + b"1" * 400 + b".5}", 422, "validation-error", "#/payload"),
    (b'{"type":"any","payload":1,"delay_s":"NaN"}', 422, "validation-error", "#/delay_s"),
    (b'{"type":"any","payload":1,"delay_s":"inf"}', 422, "validation-error", "#/delay_s"),
    (b'{"type":"any","payload":1,"priority":"5"}', 422, "validation-error", "#/priority"),
    (b'{"type":"any","payload":1,"priority":5.0}', 422, "validation-error", "#/priority"),
    (b'{"type":"any","payload":1,"priority":true}', 422, "validation-error", "#/priority"),
    # F03: what is not a JSON object of ours
    (b"\xff\xfe", 400, "invalid-json", None),
    ('{"type":"any","payload":"é"}'.encode("latin-1"), 400, "invalid-json", None),
    ('{"type":"any","payload":1}'.encode("utf-16"), 400, "invalid-json", None),
    (b'\xef\xbb\xbf{"type":"any","payload":1}', 400, "invalid-json", None),
    (b'{"type":"any","payload":"\xc0\xaf"}', 400, "invalid-json", None),
    (b'{"type":"any","payload":{"\xed\xa0\x80":1}}', 400, "invalid-json", None),
    (b'{"type":"any","payload":"\xff"}', 400, "invalid-json", None),
    (b'{"type":"any","payload":"\\ud800"}', 400, "invalid-json", None),
    (b"", 400, "invalid-json", None),
    (b"null", 422, "validation-error", "#"),
    (b"[]", 422, "validation-error", "#"),
    (b'"x"', 422, "validation-error", "#"),
    (b'{"type":"any","payload":1} {}', 400, "invalid-json", None),
    # the envelope
    (b'{"payload":1}', 422, "validation-error", "#/type"),
    (b'{"type":"any"}', 422, "validation-error", "#/payload"),
    (b'{"type":"any","payload":1,"unique_key":""}', 422, "validation-error", "#/unique_key"),
    (b'{"type":"any","payload":1,"a/b~c":1}', 422, "validation-error", "#/a~1b~0c"),
    (b'{"type":"any","type":"echo","payload":1}', 422, "validation-error", "#/type"),
    (b'{"type":"any","payload":1,"payload":2}', 422, "validation-error", "#/payload"),
    (b'{"type":"any","payload":1,"priority":10}', 422, "validation-error", "#/priority"),
    (b'{"type":"any","payload":1,"priority":-1}', 422, "validation-error", "#/priority"),
    (b'{"type":"any","payload":1,"delay_s":-1}', 422, "validation-error", "#/delay_s"),
    (b'{"type":"any","payload":1,"delay_s":1e18}', 422, "validation-error", "#/delay_s"),
    (b'{"type":"any","payload":1,"deadline_s":0}', 422, "validation-error", "#/deadline_s"),
    (b'{"type":"any","payload":1,"timeout_s":0}', 422, "validation-error", "#/timeout_s"),
    (b'{"type":"any","payload":1,"max_attempts":0}', 422, "validation-error", "#/max_attempts"),
    (b'{"type":"any","payload":1,"max_attempts":101}', 422, "validation-error", "#/max_attempts"),
    (b'{"type":"any","payload":1,"run_at":"2030-01-01T00:00:00"}', 422, "validation-error", "#/run_at"),
    (b'{"type":"any","payload":1,"run_at":1900000000}', 422, "validation-error", "#/run_at"),
    (b'{"type":"any","payload":1,"delay_s":1,"run_at":"2030-01-01T00:00:00Z"}', 422, "validation-error", "#/run_at"),
    (b'{"type":"any","payload":1,"metadata":[1]}', 422, "validation-error", "#/metadata"),
    (b'{"type":"any","payload":1,"metadata":{"a":1e999}}', 422, "validation-error", "#/metadata"),
    (b'{"type":"any","payload":1,"metadata":{"a":"' + b"x" * 5000 + b'"}}', 422, "validation-error", "#/metadata"),
    # F13: names that mean something elsewhere
    *(
        (b'{"type":"any","payload":1,"queue":%s}' % queue, 422, "validation-error", "#/queue")
        for queue in (
            b'"a/b"',
            b'""',
            b'"a b"',
            b'"*"',
            b'"a:b"',
            b'"a{b}c"',
            '"é"'.encode(),
            b'"a\\n"',
            b'"%s"' % (b"q" * 65),
        )
    ),
    *(
        (b'{"type":%s,"payload":1}' % name, 422, "validation-error", "#/type")
        for name in (b'"nope"', b'"any\\n"', b'"*"', b'"[a-z]"', b'"any:v1"', b'"\\u0000"', b'"%s"' % (b"t" * 10_000))
    ),
    # the payload's schema
    (b'{"type":"echo","payload":{}}', 422, "validation-error", "#/payload/text"),
    (b'{"type":"echo","payload":{"text":1}}', 422, "validation-error", "#/payload/text"),
    (b'{"type":"echo","payload":{"text":"","times":0}}', 422, "validation-error", "#/payload/times"),
    (b'{"type":"echo","payload":{"text":"","times":"3"}}', 422, "validation-error", "#/payload/times"),
    (b'{"type":"echo","payload":{"text":"","x":1}}', 422, "validation-error", "#/payload/x"),
    (b'{"type":"echo","payload":null}', 422, "validation-error", "#/payload"),
]


@pytest.mark.parametrize(("body", "status", "slug", "pointer"), REFUSED, ids=lambda value: repr(value)[:60])
async def test_refused_before_anything_is_queued(
    http: httpx.AsyncClient, live_store: Store, body: bytes, status: int, slug: str, pointer: str | None
) -> None:
    answer = await http.post("/tasks", content=body, headers=JSON)
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (status, f"/problems/{slug}")
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert len(answer.content) < 4_000
    assert [fault["pointer"] for fault in problem.get("errors", [])] == ([] if pointer is None else [pointer])
    assert await nothing_is_queued(live_store)


@pytest.mark.parametrize(
    "content_type",
    [
        *(
            "text/plain",
            "multipart/form-data; boundary=x",
            "application/json; charset=latin-1",
            "application/jsonx",
            None,
        ),
        *("application/a b+json", "application/+json", "application/json; foo", "application/json charset=utf-8"),
        *(
            'application/json; a="x',
            'application/json; a=";charset=utf-8"; charset=latin-1',
            "application/json, text/plain",
        ),
    ],
)
async def test_another_media_type_is_415(http: httpx.AsyncClient, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = await http.post("/tasks", content=b'{"type":"any","payload":1}', headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-media-type")


@pytest.mark.parametrize(
    "content_type",
    [
        *("application/json; charset=UTF-8", "Application/JSON", "application/vnd.x+json", "application/a+b+json;"),
        'application/json ;v=1 ; ; charset="utf8";a="x; charset=latin-1\\""',
    ],
)
async def test_json_by_other_spellings_is_taken(http: httpx.AsyncClient, content_type: str) -> None:
    answer = await http.post("/tasks", content=b'{"type":"any","payload":1}', headers={"content-type": content_type})
    assert answer.status_code == 202


async def test_nothing_of_the_payload_comes_back_in_an_error(
    http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """F03: a megabyte with one field left out; the answer names the field and repeats nothing."""
    for body in (
        b'{"type":"echo","payload":{"more":"SECRET-MARKER%s"}}' % (b"x" * 900_000),
        b'{"type":"echo","payload":{"text":["SECRET-MARKER"],"times":"SECRET-MARKER"}}',
        b'{"type":"any","payload":{"SECRET-MARKER":1e999}}',
        b'{"payload":"SECRET-MARKER"}',
    ):
        answer = await http.post("/tasks", content=body, headers=JSON)
        assert answer.status_code == 422
        assert "SECRET" not in answer.text
        assert len(answer.content) < 4_000
    output = capsys.readouterr()
    assert "SECRET" not in output.out + output.err


async def test_many_faults_stay_a_short_answer(http: httpx.AsyncClient, worker: Worker) -> None:
    await worker.publish(many={"type": "array", "items": {"type": "integer"}})
    await worker.beat()
    answer = await http.post("/tasks", json={"type": "many", "payload": ["x" * 50] * 1000})
    assert (answer.status_code, len(answer.json()["errors"])) == (422, 20)
    assert len(answer.content) < 4_000


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
async def test_depth_has_one_limit(http: httpx.AsyncClient, worker: Worker, opening: bytes, closing: bytes) -> None:
    """F02: at it a payload works to the end, above it is 422, however deep, on every Python version."""
    for depth in (90, MAX_DEPTH, MAX_DEPTH + 1, 500, 1_000, 20_000, 100_000):
        nested = opening * depth + b"1" + closing * depth
        answer = await http.post("/tasks", content=b'{"type":"any","payload":' + nested + b"}", headers=JSON)
        assert answer.status_code == (202 if depth <= MAX_DEPTH else 422), depth
        if depth <= MAX_DEPTH:
            [claimed] = await worker.claim()
            assert claimed.payload == nested
        else:
            assert answer.json()["errors"][0]["detail"] == "a value inside more than 200 arrays and objects"
        whole = await http.post("/tasks", content=nested, headers=JSON)
        assert whole.status_code == 422


async def test_half_of_a_surrogate_pair_is_called_by_its_name(http: httpx.AsyncClient, worker: Worker) -> None:
    for text in (rb'"\ud800"', rb'["\ud800"]'):
        answer = await http.post("/tasks", content=b'{"type":"any","payload":' + text + b"}", headers=JSON)
        assert (answer.status_code, answer.json()["detail"]) == (
            400,
            "Cut off, or an escape is half of a surrogate pair.",
        )


async def test_a_declared_size_over_the_limit_is_refused_unread(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"x" * 1001

    async with client_of(gateway_of(max_body_bytes=1000)) as http:
        for path in ("/tasks", "/tasks/x/cancel"):
            answer = await http.post(path, content=body(), headers={**JSON, "content-length": "1001"})
            assert (answer.status_code, answer.json()["type"]) == (413, "/problems/body-too-large")
            assert answer.headers["connection"] == "close"
        assert read == 0
        fits = b'{"type":"any","payload":1}'.ljust(1000)
        assert (await http.post("/tasks", content=fits, headers=JSON)).status_code == 202


async def test_an_endless_body_is_cut(gateway_of: Callable[..., Door], worker: Worker) -> None:
    """F04: no Content-Length; only what is allowed, and one chunk, is ever read."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 100
            yield b" " * 100

    async with client_of(gateway_of(max_body_bytes=1000)) as http:
        answer = await http.post("/tasks", content=endless(), headers=JSON)
        assert (answer.status_code, sent) == (413, 1100)
        other = await http.post("/tasks/x/cancel", content=endless(), headers=JSON)
        assert other.status_code == 404


async def test_before_workers_have_published_it_is_503(gateway_of: Callable[..., Door]) -> None:
    async with client_of(gateway_of()) as http:
        answer = await http.post("/tasks", json={"type": "echo", "payload": {"text": ""}})
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/starting")
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_type_published_a_moment_ago_is_known(http: httpx.AsyncClient, worker: Worker) -> None:
    assert (await http.post("/tasks", json={"type": "new", "payload": 1})).status_code == 422
    await worker.publish(new={"type": "integer"})
    await asyncio.sleep(0.3)  # the registry looks again at most four times a second
    assert (await http.post("/tasks", json={"type": "new", "payload": 1})).status_code == 202


@pytest.mark.parametrize("spelling", ["8e03978e-40d5", '"8e03978e-40d5"'])
async def test_the_same_key_and_body_is_the_same_task(http: httpx.AsyncClient, worker: Worker, spelling: str) -> None:
    body = {"type": "echo", "payload": {"text": "once"}}
    first = await http.post("/tasks", json=body, headers={"Idempotency-Key": "8e03978e-40d5"})
    [claimed] = await worker.claim()
    again = await http.post("/tasks", json=body, headers={"Idempotency-Key": spelling})
    assert "idempotent-replayed" not in first.headers
    assert (again.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert again.headers["location"] == first.headers["location"] == f"/tasks/{claimed.id}"
    assert again.json()["status"] == "running"


async def test_another_body_under_a_used_key_is_422(http: httpx.AsyncClient, worker: Worker) -> None:
    headers = {"Idempotency-Key": "k"}
    await http.post("/tasks", json={"type": "echo", "payload": {"text": "a"}}, headers=headers)
    other = await http.post("/tasks", json={"type": "echo", "payload": {"text": "b"}}, headers=headers)
    assert (other.status_code, other.json()["type"]) == (422, "/problems/idempotency-key-reused")
    assert len(await worker.claim(2)) == 1


@pytest.mark.parametrize("key", ['""', "x" * 256, "a\tb", "é"])
async def test_a_bad_key_is_400(http: httpx.AsyncClient, live_store: Store, key: str) -> None:
    answer = await http.post(
        "/tasks",
        json={"type": "any", "payload": 1},
        headers=[(b"Idempotency-Key", key.encode())],
    )
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/idempotency-key-invalid")
    assert await nothing_is_queued(live_store)


async def test_fifty_at_once_with_one_key_are_one_task(gateway_of: Callable[..., Door], worker: Worker) -> None:
    """F07: two gateways; one execution, fifty equal answers; another tenant's key is another key."""
    doors = [gateway_of(partitions=4, tenant_header="X-Tenant") for _ in range(2)]
    clients = [client_of(door) for door in doors]
    body = {"type": "any", "payload": 1}
    for key in ("a", "b/c?d", "*"):
        answers = await asyncio.gather(
            *(random.choice(clients).post("/tasks", json=body, headers={"Idempotency-Key": key}) for _ in range(50))
        )
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
        theirs = await clients[0].post("/tasks", json=body, headers={"Idempotency-Key": key, "X-Tenant": "other"})
        assert (theirs.status_code, "idempotent-replayed" in theirs.headers) == (202, False)
    for client in clients:
        await client.aclose()


async def test_the_queue_takes_exactly_its_limit_from_a_hundred_at_once(
    gateway_of: Callable[..., Door], worker: Worker, live_store: Store
) -> None:
    """F29: 100 submitters through two gateways; never one too many, and every refusal says when to come again."""
    clients = [client_of(gateway_of(queue_limit_tasks=50)) for _ in range(2)]

    async def three(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.post("/tasks", json={"type": "any", "payload": 1}) for _ in range(3)]

    answers = list(chain(*await asyncio.gather(*(three(clients[n % 2]) for n in range(100)))))
    refused = [answer for answer in answers if answer.status_code != 202]
    assert len(answers) - len(refused) == 50
    assert (await live_store.usage(0))["waiting:queue:default"] == 50
    for answer in refused:
        assert (answer.status_code, answer.json()["type"]) == (429, "/problems/queue-full")
        assert (answer.json()["limit"], answer.json()["queue"]) == ("queue-tasks", "default")
        assert 1 <= int(answer.headers["retry-after"]) <= 72
    assert len({answer.headers["retry-after"] for answer in refused}) > 1
    [claimed] = await worker.claim()
    accepted = [answer.json()["id"] for answer in answers if answer.status_code == 202]
    assert claimed.id in accepted
    assert (await clients[0].post("/tasks", json={"type": "any", "payload": 1})).status_code == 202
    assert (await clients[0].post("/tasks", json={"type": "any", "payload": 1})).status_code == 429
    for client in clients:
        await client.aclose()


async def test_the_queue_is_full_by_bytes_too(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(queue_limit_bytes=100_000)) as http:
        body = {"type": "any", "payload": "x" * 40_000}
        assert [(await http.post("/tasks", json=body)).status_code for _ in range(3)] == [202, 202, 429]
        full = await http.post("/tasks", json=body)
        assert full.json()["limit"] == "queue-bytes"
        assert (await http.post("/tasks", json={"type": "any", "payload": 1})).status_code == 202


async def test_a_replay_is_answered_by_a_full_queue(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(queue_limit_tasks=1)) as http:
        body, headers = {"type": "any", "payload": 1}, {"Idempotency-Key": "k"}
        first = await http.post("/tasks", json=body, headers=headers)
        assert (await http.post("/tasks", json=body)).status_code == 429
        assert (await http.post("/tasks", json=body, headers=headers)).json()["id"] == first.json()["id"]


async def test_a_task_of_another_partition_is_found(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(partitions=8)) as http:
        tasks = [await submit(http) for _ in range(20)]
        assert len({int(task["id"][-2:], 16) % 8 for task in tasks}) > 1
        for task in tasks:
            assert (await http.get(f"/tasks/{task['id']}")).json()["id"] == task["id"]


async def test_scripts_that_redis_has_forgotten_are_loaded_again(
    http: httpx.AsyncClient, redis_client: Any, worker: Worker
) -> None:
    """F20: after SCRIPT FLUSH no request fails."""
    await submit(http)
    await redis_client.script_flush()
    task = await submit(http)
    assert (await http.get(f"/tasks/{task['id']}", headers={"Cache-Control": "no-cache"})).status_code == 200


@pytest.mark.parametrize("keys", [("a", "b"), ("a", "a")])
async def test_two_idempotency_keys_are_refused(
    http: httpx.AsyncClient, live_store: Store, keys: tuple[str, str]
) -> None:
    headers = [("content-type", "application/json"), *(("idempotency-key", key) for key in keys)]
    answer = await http.post("/tasks", content=b'{"type":"echo","payload":{"text":"hi"}}', headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/idempotency-key-invalid")
    assert await nothing_is_queued(live_store)
