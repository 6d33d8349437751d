"""Dead letters over HTTP: lists in pages, one with its history, redriving and deleting many."""

import asyncio
import gzip
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from app import sweeps
from app.cursors import sealed
from app.door import Door
from app.filters import Wanted
from taskgate.contract import keys
from taskgate.contract.ids import new_task_id
from taskgate.contract.models import Finish, Served
from tests.api.conftest import Worker, client_of, next_ms, submit

ERROR: dict[str, Any] = {"kind": "exception", "message": "no", "traceback": "line 1", "stack": "in f"}


ID = "0193c0de-7a3e-7b1c-9d2f-0123456789ab"


async def dead(http: httpx.AsyncClient, worker: Worker, *, kind: str = "exception", **members: Any) -> str:
    task = await submit(http, **members)
    [claimed] = await worker.claim()
    await worker.finish(claimed, "failed", error=msgspec.json.encode(ERROR | {"kind": kind}))
    assert claimed.id == task["id"]
    return claimed.id


async def ids_of(http: httpx.AsyncClient, **filters: Any) -> list[str]:
    answer = await http.get("/dead-letters", params=filters)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


async def redrive(http: httpx.AsyncClient, request_id: str = "", **body: Any) -> dict[str, Any]:
    headers = {"X-Request-ID": request_id} if request_id else {}
    answer = await http.post("/dead-letters/redrive", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def purge(http: httpx.AsyncClient, **filters: Any) -> dict[str, Any]:
    answer = await http.delete("/dead-letters", params=filters)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def statuses(http: httpx.AsyncClient, *task_ids: str) -> list[str]:
    return [(await http.get(f"/tasks/{each}")).json()["status"] for each in task_ids]


async def test_they_are_listed_newest_first_and_leave_the_list_by_a_redrive(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    made = [await dead(http, worker) for _ in range(3)][::-1]
    assert await ids_of(http) == made
    answer = await http.post(f"/tasks/{made[0]}/redrive", headers={"X-Request-ID": "one"})
    assert (answer.status_code, answer.json()["status"], answer.json()["attempt"]) == (202, "queued", 0)
    assert (await http.post(f"/tasks/{made[0]}/redrive", headers={"X-Request-ID": "one"})).status_code == 202
    twice = await http.post(f"/tasks/{made[0]}/redrive", headers={"X-Request-ID": "two"})
    assert (twice.status_code, twice.json()["type"]) == (409, "/problems/not-dead")
    assert await ids_of(http) == made[1:]
    [claimed] = await worker.claim()
    assert (claimed.id, claimed.attempt) == (made[0], 1)


async def test_pages_show_each_once_also_many_of_one_millisecond(http: httpx.AsyncClient, worker: Worker) -> None:
    for _ in range(7):
        await submit(http)
    claimed = await worker.claim(7)
    made = {one.id for one in claimed}
    for one in claimed:
        await worker.finish(one, "failed", error=b'{"kind":"crash"}')
    seen: list[str] = []
    url = "/dead-letters?limit=2&kind=crash"
    while url:
        answer = await http.get(url)
        page = answer.json()
        seen += [item["id"] for item in page["items"]]
        url = answer.links["next"]["url"] if page["next_cursor"] else ""
    assert len(seen) == 7
    assert set(seen) == made


async def test_they_are_found_by_queue_type_kind_and_time(http: httpx.AsyncClient, worker: Worker) -> None:
    first = await dead(http, worker)
    ended = (await http.get(f"/tasks/{first}")).json()["finished_at"]
    second = await dead(http, worker, type="any", payload=1, kind="timeout")
    assert await ids_of(http, type="any") == [second]
    assert await ids_of(http, kind="exception") == [first]
    assert await ids_of(http, queue="default") == [second, first]
    assert await ids_of(http, queue="other") == []
    assert await ids_of(http, before=ended) == []
    assert first in await ids_of(http, after=ended)
    assert await ids_of(http, after="2100-01-01T00:00:00Z") == []


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=x",
        "before=-1",
        "queue=a/b",
        "queue=*",
        "kind=%20",
        "colour=red",
        "queue=a&queue=b",
        "cursor=x",
    ],
)
async def test_bad_filters_are_400(http: httpx.AsyncClient, query: str) -> None:
    answer = await http.get(f"/dead-letters?{query}")
    assert answer.status_code == 400
    assert answer.json()["type"] in ("/problems/bad-request", "/problems/invalid-cursor")


async def test_a_tenant_sees_redrives_and_deletes_its_own_alone(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    async with client_of(gateway_of(tenant_header="X-Tenant")) as http:
        for _ in range(3):
            await http.post("/tasks", json={"type": "any", "payload": 1}, headers={"X-Tenant": "a"})
            [claimed] = await worker.claim()
            await worker.finish(claimed, "failed", error=b'{"kind":"crash"}')
        other, own = {"X-Tenant": "b"}, {"X-Tenant": "a"}
        assert (await http.get("/dead-letters", headers=other)).json()["items"] == []
        assert (await http.get(f"/dead-letters/{claimed.id}", headers=other)).status_code == 404
        bodies: list[dict[str, Any]] = [{"filter": {}}, {"ids": [claimed.id]}]
        for body in bodies:
            answer = (await http.post("/dead-letters/redrive", json=body, headers=other)).json()
            assert (answer["redriven"], answer["next_cursor"]) == (0, None)
        assert (await http.delete("/dead-letters?all=true", headers=other)).json()["deleted"] == 0
        page = (await http.get("/dead-letters?limit=2", headers=own)).json()
        assert len(page["items"]) == 2
        stolen = await http.get(f"/dead-letters?limit=2&cursor={page['next_cursor']}", headers=other)
        assert (stolen.status_code, stolen.json()["type"]) == (400, "/problems/invalid-cursor")
        assert (await http.delete("/dead-letters?all=true", headers=own)).json()["deleted"] == 3


async def test_one_is_shown_with_each_attempt_also_of_before_its_redrive(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    task = await submit(http)
    for number in range(1, 5):
        [claimed] = await worker.claim()
        await worker.finish(
            claimed,
            "retry",
            max_attempts=2,
            error=msgspec.json.encode(ERROR | {"message": f"no {number}", "rss_peak_bytes": number}),
            effort=b'{"rss_peak_bytes":2,"cpu_ms":1}',
        )
        if number == 2:
            await http.post(f"/tasks/{task['id']}/redrive")
    answer = await http.get(f"/dead-letters/{task['id']}")
    shown = answer.json()
    assert (answer.status_code, shown["id"], shown["status"], shown["attempts_lost"]) == (200, task["id"], "failed", 0)
    attempts = shown["attempts"]
    assert [one["attempt"] for one in attempts] == [1, 2, 1, 2]
    assert [one["error"]["message"] for one in attempts] == ["no 1", "no 2", "no 3", "no 4"]
    assert [one["rss_peak_bytes"] for one in attempts] == [2, 2, 3, 4]
    assert {one["worker"] for one in attempts} == {worker.info.id}
    assert {(one["error"]["traceback"], one["error"]["stack"]) for one in attempts} == {("line 1", "in f")}
    assert [one["redriven_at"] is not None for one in attempts] == [False, False, True, True]
    assert shown["attempts"][-1]["finished_at"] == shown["finished_at"]
    times = [one[name] for one in attempts for name in ("started_at", "finished_at")]
    assert times == sorted(times)


async def test_only_a_failed_task_is_a_dead_letter(http: httpx.AsyncClient) -> None:
    task = await submit(http)
    answer = await http.get(f"/dead-letters/{task['id']}")
    assert (answer.status_code, answer.json()["task_status"]) == (409, "queued")
    for unknown in (new_task_id(), "redrive"):
        assert (await http.get(f"/dead-letters/{unknown}")).status_code == 404


async def test_one_that_changes_all_the_time_is_shown_as_it_was_at_one_moment(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = gateway_of()
    store = door.gateway.store
    history = store.history

    async def and_changes(task_id: str) -> Any:
        found = await history(task_id)
        await redis_client.hincrby(keys.task(0, task_id), "version", 1)
        return found

    monkeypatch.setattr(store, "history", and_changes)
    async with client_of(door) as http:
        task_id = await dead(http, worker)
        answer = await asyncio.wait_for(http.get(f"/dead-letters/{task_id}"), 60)
    assert (answer.status_code, len(answer.json()["attempts"])) == (200, 1)


async def test_those_that_are_named_are_redriven(http: httpx.AsyncClient, worker: Worker) -> None:
    made = [await dead(http, worker) for _ in range(3)]
    alive = (await submit(http))["id"]
    asked = [*made[:2], made[0], alive, new_task_id(), "odd"]
    answer = await redrive(http, ids=asked)
    assert answer == {
        "redriven": 2, "refused": 0, "skipped": 4, "limit": None, "retry_after_s": None, "remaining": 0,
        "next_cursor": None, "refused_ids": [], "next_start_at": None,
    }  # fmt: skip
    assert await statuses(http, *made) == ["queued", "queued", "failed"]


async def test_those_that_fit_a_filter_are_redriven_and_no_others(http: httpx.AsyncClient, worker: Worker) -> None:
    made = [await dead(http, worker, kind=kind) for kind in ("crash", "timeout", "crash")]
    assert (await redrive(http, filter={"kind": "crash", "type": "echo"}))["redriven"] == 2
    assert await statuses(http, *made) == ["queued", "failed", "queued"]
    later = datetime.now(UTC).replace(year=2100).isoformat()
    assert (await redrive(http, filter={"after": later}))["redriven"] == 0
    assert (await redrive(http, filter={"before": later}))["redriven"] == 1


async def test_many_go_in_bounded_requests_the_oldest_first(
    http: httpx.AsyncClient, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "MOST", 4)
    made = [await dead(http, worker, kind="crash" if n % 2 else "lost") for n in range(10)]
    first = await redrive(http, filter={"kind": "crash"})
    assert first["redriven"] == 2, "four were looked at"
    assert await statuses(http, *made[:6]) == ["failed", "queued", "failed", "queued", "failed", "failed"]
    second = await redrive(http, filter={"kind": "crash"}, limit=1, cursor=first["next_cursor"])
    assert second["redriven"] == 1
    third = await redrive(http, filter={"kind": "crash"}, cursor=second["next_cursor"])
    assert (third["redriven"], third["next_cursor"]) == (2, None)
    assert len(await ids_of(http)) == 5


async def test_what_fails_again_while_a_sweep_goes_on_is_not_redriven_by_it(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    made = [await dead(http, worker) for _ in range(3)]
    answer = await redrive(http, filter={}, limit=1)
    await next_ms(worker.store)  # a sweep takes what ends in the millisecond of its beginning
    [claimed] = await worker.claim()
    assert claimed.id == made[0]
    await worker.finish(claimed, "failed", error=b'{"kind":"crash"}')
    rounds = 0
    while answer["next_cursor"] is not None:
        answer = await redrive(http, filter={}, limit=1, cursor=answer["next_cursor"])
        rounds += 1
    assert rounds <= 3
    assert await statuses(http, *made) == ["failed", "queued", "queued"]


async def test_a_repeat_of_a_lost_answer_redrives_nothing_twice(http: httpx.AsyncClient, worker: Worker) -> None:
    made = [await dead(http, worker) for _ in range(2)]
    assert (await redrive(http, "r1", ids=made))["redriven"] == 2
    for claimed in await worker.claim(2):
        await worker.finish(claimed, "failed", error=b'{"kind":"crash"}')
    assert (await redrive(http, "r1", ids=made))["redriven"] == 2, "the same answer"
    await redrive(http, "r1", filter={})
    assert await statuses(http, *made) == ["failed", "failed"]
    await redrive(http, "r2", filter={})
    assert await statuses(http, *made) == ["queued", "queued"]


async def test_at_a_rate_they_start_one_after_the_other_over_all_requests(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    made = [await dead(http, worker) for _ in range(4)]
    first = await redrive(http, filter={}, limit=2, rate_per_s=0.1)
    second = await redrive(http, filter={}, rate_per_s=0.1, cursor=first["next_cursor"])
    assert (first["redriven"], second["redriven"]) == (2, 2)
    tasks = [(await http.get(f"/tasks/{each}")).json() for each in made]
    assert [task["status"] for task in tasks[1:]] == ["scheduled"] * 3
    starts = [datetime.fromisoformat(task["scheduled_at"]) for task in tasks[1:]]
    assert [(b - a).total_seconds() for a, b in itertools.pairwise(starts)] == [10, 10]


async def test_those_that_are_named_keep_to_a_rate_over_several_requests(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    made = [await dead(http, worker) for _ in range(4)]
    first = await redrive(http, ids=[*made[:2], new_task_id()], rate_per_s=0.1)
    start_at = first["next_start_at"]
    second = await redrive(http, ids=made[2:], rate_per_s=0.1, start_at=start_at)
    assert (first["redriven"], second["redriven"]) == (2, 2)
    tasks = [(await http.get(f"/tasks/{each}")).json() for each in made[1:]]
    starts = [datetime.fromisoformat(task["scheduled_at"]) for task in tasks]
    starts.append(datetime.fromisoformat(second["next_start_at"]))
    assert [round((b - a).total_seconds(), 1) for a, b in itertools.pairwise(starts)] == [10, 10, 10]


async def test_of_those_that_are_named_the_refused_are_told(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(queue_limit_tasks=1)) as http:
        made = [await dead(http, worker) for _ in range(3)]
        answer = await redrive(http, ids=made)
        assert (answer["redriven"], answer["refused"], answer["refused_ids"]) == (1, 2, made[1:])
        assert (answer["limit"], answer["retry_after_s"] >= 1) == ("queue-tasks", True)


async def test_what_finds_no_room_stays_and_is_counted(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(queue_limit_tasks=2)) as http:
        made = [await dead(http, worker) for _ in range(5)]
        answer = await redrive(http, filter={})
        assert (answer["redriven"], answer["refused"], answer["limit"]) == (2, 3, "queue-tasks")
        assert answer["retry_after_s"] >= 1
        assert answer["remaining"] == 3
        assert await ids_of(http) == made[:1:-1]
        await worker.claim(2)
        answer = await redrive(http, filter={}, cursor=answer["next_cursor"])
        assert (answer["redriven"], answer["refused"], answer["remaining"]) == (2, 1, 1)


async def test_what_finds_no_room_is_met_again_once_all_others_were_tried(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another queue may have room: behind however many that have none, and over several requests."""
    monkeypatch.setattr(sweeps, "BATCH", 1)
    monkeypatch.setattr(sweeps, "MOST", 3)
    async with client_of(gateway_of(queue_limit_tasks=1)) as http:
        worker.served.append(Served("other", "echo", "sync"))
        made = [await dead(http, worker) for _ in range(6)]
        free = await dead(http, worker, queue="other")
        answer = await redrive(http, filter={})
        assert (answer["redriven"], answer["refused"], answer["remaining"]) == (1, 2, 6)
        assert (answer["limit"], answer["retry_after_s"]) == ("queue-tasks", None), "others are still to be tried"
        answer = await redrive(http, filter={}, cursor=answer["next_cursor"])
        assert (answer["redriven"], answer["refused"], answer["retry_after_s"]) == (0, 3, None)
        answer = await redrive(http, filter={}, cursor=answer["next_cursor"])
        assert (answer["redriven"], answer["refused"], answer["remaining"]) == (1, 0, 5)
        assert await statuses(http, free) == ["queued"]
        assert (answer["limit"], answer["retry_after_s"] >= 1) == ("queue-tasks", True), "as its round was refused"
        await worker.claim(2)
        answer = await redrive(http, filter={}, cursor=answer["next_cursor"])
        assert answer["redriven"] == 1
        assert await statuses(http, *made[1:]) == ["queued", *["failed"] * 4], "the oldest of them first"
        for _ in range(20):
            await worker.claim(1)
            answer = await redrive(http, filter={}, cursor=answer["next_cursor"])
            if answer["next_cursor"] is None:
                break
        assert "failed" not in await statuses(http, *made)


async def test_what_is_skipped_and_met_again_is_counted_once(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(queue_limit_tasks=1)) as http:
        await dead(http, worker, unique_key="taken")
        for _ in range(2):
            await dead(http, worker)
        await submit(http, unique_key="taken")
        await worker.claim()
        answer = await redrive(http, filter={})
        assert (answer["redriven"], answer["refused"], answer["skipped"]) == (1, 1, 0)
        await worker.claim()
        answer = await redrive(http, filter={}, cursor=answer["next_cursor"])
        assert (answer["redriven"], answer["refused"], answer["skipped"]) == (1, 0, 1)
        assert answer["next_cursor"] is None


async def test_letters_that_a_full_queue_has_spilled_are_redriven_and_deleted_as_others(
    gateway_of: Callable[..., Door], worker: Worker, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[queues.default]\nlimit_tasks = 2\non_full = "spill"\n')
    door = gateway_of(policy_file=str(policy))
    async with client_of(door) as http:
        made = [(await submit(http))["id"] for _ in range(6)]
        assert await ids_of(http, kind="overflow") == made[:1:-1]
        shown = (await http.get(f"/dead-letters/{made[2]}")).json()
        assert (shown["error"]["kind"], shown["attempts"]) == ("overflow", [])
        await worker.claim(2)
        assert (await redrive(http, filter={"kind": "overflow"}))["redriven"] == 2
        assert await statuses(http, *made[2:]) == ["queued", "queued", "failed", "failed"]
        assert (await purge(http, kind="overflow"))["deleted"] == 2
        usage = await door.gateway.store.usage(0)
        assert not [name for name in usage if name.startswith("spilled")]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ("{}", "#/filter"),
        ('{"ids":[],"filter":{}}', "#/filter"),
        ('{"ids":[],"cursor":"x"}', "#/cursor"),
        ('{"ids":[],"limit":1}', "#/limit"),
        ('{"ids":[],"start_at":"2026-11-30T00:00:00Z"}', "#/start_at"),
        ('{"filter":{},"rate_per_s":1,"start_at":"2026-11-30T00:00:00Z"}', "#/start_at"),
        ('{"ids":[],"rate_per_s":1,"start_at":"2300-01-01T00:00:00Z"}', "#/start_at"),
        ('{"filter":{"colour":"red"}}', "#/filter/colour"),
        ('{"filter":{"queue":"a/b"}}', "#/filter/queue"),
        ('{"filter":{"after":"yesterday"}}', "#/filter/after"),
        ('{"filter":{},"limit":0}', "#/limit"),
        ('{"filter":{},"limit":1001}', "#/limit"),
        ('{"filter":{},"rate_per_s":0}', "#/rate_per_s"),
        ('{"filter":{"queue":"a"},"filter":{}}', "#"),
        (f'{{"ids":[{",".join(chr(34) * 2 for _ in range(1001))}]}}', "#/ids"),
        ("[]", "#"),
    ],
)
async def test_a_body_that_does_not_say_what_to_redrive_is_422(
    http: httpx.AsyncClient, body: str, pointer: str
) -> None:
    answer = await http.post("/dead-letters/redrive", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")
    assert [one["pointer"] for one in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("body", "media_type", "slug"),
    [("nope", "application/json", "invalid-json"), ('{"filter":{}}', "text/plain", "unsupported-media-type")],
)
async def test_what_is_no_json_redrives_nothing(http: httpx.AsyncClient, body: str, media_type: str, slug: str) -> None:
    answer = await http.post("/dead-letters/redrive", content=body, headers={"Content-Type": media_type})
    assert answer.json()["type"] == f"/problems/{slug}"


async def test_a_compressed_body_is_read_and_another_coding_refused(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id = await dead(http, worker)
    body = b'{"filter":{}}'
    for coding, content, status in (("br", body, 415), ("gzip", body, 400), ("gzip", gzip.compress(body), 200)):
        assert await statuses(http, task_id) == ["failed"]
        headers = {"Content-Type": "application/json", "Content-Encoding": coding}
        answer = await http.post("/dead-letters/redrive", content=content, headers=headers)
        assert answer.status_code == status, coding
    assert await statuses(http, task_id) == ["queued"]


async def test_purging_needs_to_be_meant(http: httpx.AsyncClient, worker: Worker) -> None:
    task_id = await dead(http, worker)
    for query in ("", "?limit=5", "?all=false", "?all=true&kind=exception", "?colour=red"):
        answer = await http.delete(f"/dead-letters{query}")
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/bad-request"), query
    assert await ids_of(http) == [task_id]


async def test_those_that_fit_are_deleted_and_again_is_nothing(http: httpx.AsyncClient, worker: Worker) -> None:
    made = [await dead(http, worker, kind=kind) for kind in ("crash", "timeout", "crash")]
    done = (await submit(http))["id"]
    [claimed] = await worker.claim()
    await worker.finish(claimed)
    assert await statuses(http, *made) == ["failed"] * 3
    assert await purge(http, kind="crash") == {"deleted": 2, "remaining": 0, "next_cursor": None}
    assert await purge(http, kind="crash") == {"deleted": 0, "remaining": 0, "next_cursor": None}
    assert [(await http.get(f"/tasks/{each}")).status_code for each in (*made, done)] == [404, 200, 404, 200]
    first = await purge(http, all="true", limit=1)
    assert first["deleted"] == 1
    assert await ids_of(http) == []
    assert (await http.get(f"/tasks/{done}")).status_code == 200


async def test_a_purge_goes_on_by_its_cursor_and_spares_what_failed_since(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    for _ in range(3):
        await dead(http, worker)
    answer = await purge(http, all="true", limit=2)
    assert (answer["deleted"], answer["remaining"]) == (2, 1)
    await next_ms(worker.store)
    late = await dead(http, worker)
    answer = await purge(http, all="true", cursor=answer["next_cursor"])
    assert answer == {"deleted": 1, "remaining": 0, "next_cursor": None}
    assert await ids_of(http) == [late]


async def test_a_purge_takes_no_other_limit_than_a_redrive(http: httpx.AsyncClient) -> None:
    for limit, status in (("0", 422), ("1001", 422), ("9" * 5000, 422), ("-1", 400), ("x", 400), ("1000", 200)):
        answer = await http.delete("/dead-letters", params={"all": "true", "limit": limit})
        assert answer.status_code == status, limit
        if status == 422:
            assert [one["pointer"] for one in answer.json()["errors"]] == ["#/limit"]


async def test_a_cursor_goes_on_with_what_it_was_given_for_alone(http: httpx.AsyncClient, worker: Worker) -> None:
    """Even that of another sweep has another meaning: a list has the newest first."""
    made = [await dead(http, worker) for _ in range(3)]
    everything: dict[str, Any] = {"limit": 1}
    cursors = {
        "list": (await http.get("/dead-letters", params=everything)).json()["next_cursor"],
        "redrive": (await redrive(http, filter={}, limit=1))["next_cursor"],
        "purge": (await purge(http, all="true", limit=1))["next_cursor"],
        "tasks": (await http.get("/tasks", params=everything)).json()["next_cursor"],
    }
    assert all(cursors.values())
    for use, cursor in cursors.items():
        answers = {
            "list": await http.get("/dead-letters", params={"cursor": cursor}),
            "redrive": await http.post("/dead-letters/redrive", json={"filter": {}, "cursor": cursor, "limit": 1}),
            "purge": await http.delete("/dead-letters", params={"all": "true", "cursor": cursor, "limit": 1}),
            "tasks": await http.get("/tasks", params={"cursor": cursor}),
        }
        for asked, answer in answers.items():
            assert answer.status_code == (200 if asked == use else 400), (use, asked)
            assert asked == use or answer.json()["type"] == "/problems/invalid-cursor"
    assert len(made) == 3


async def test_a_forged_cursor_is_400(http: httpx.AsyncClient) -> None:
    """Its seal is no secret: who has read the code can make one."""
    letters = Wanted(letters=True)

    async def check(asked: Awaitable[httpx.Response], value: Any) -> None:
        answer = await asked
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/invalid-cursor"), value

    places: list[Any] = [[1, 1, partition, 1, ""] for partition in (-1, 1, 2**70)]
    places += [[1, 1, 0, 1, "", [partition, 1, "", "x", 1]] for partition in (-1, 1, 2**70)]
    places += [[1, 1, 0, 1, "", [0, 1, "", "x", 0]], [1, 1, 0, 1, "", [0, 1, "", "x", 2**70]]]
    places += [[1, 2**60, 0, 1, ""], [1, 1, 0, 10**400, ""], ["x", 1, 0, 1, ""], [1, 1], {}, "1:1:0:1:x"]
    for place in places:
        body: dict[str, Any] = {"filter": {}, "cursor": sealed(place, "redrive", letters, "default")}
        await check(http.post("/dead-letters/redrive", json=body), place)
        purged = sealed(place, "purge", letters, "default")
        await check(http.delete("/dead-letters", params={"all": "true", "cursor": purged}), place)
    await check(http.post("/dead-letters/redrive", json={"filter": {}, "cursor": ""}), "")
    for mark in ([10**400, ""], ["inf", ""], [1, 1], [1], "1:x", None):
        for path, wanted in (("/dead-letters", letters), ("/tasks", Wanted())):
            await check(http.get(path, params={"cursor": sealed(mark, "list", wanted, "default")}), mark)


async def test_several_partitions_are_swept_one_after_the_other(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    door = gateway_of(partitions=3)
    store = door.gateway.store
    async with client_of(door) as http:
        made = {(await submit(http))["id"] for _ in range(12)}
        assert len({store.partition_of(each) for each in made}) > 1
        for partition in store.partitions:
            await store.beat(partition, worker.info, held=[], served=worker.served)
            claimed = await store.claim(
                partition, worker.info.id, served=worker.served, free_sync=12, free_async=0, lease_ms=60_000
            )
            ends = [Finish(id=one.id, epoch=one.epoch, outcome="failed", error=b'{"kind":"lost"}') for one in claimed]
            await store.finish(partition, worker.info.id, ends)
        assert set(await ids_of(http)) == made
        answer = await redrive(http, filter={"kind": "lost"}, limit=5)
        redriven = [answer["redriven"]]
        while answer["next_cursor"] is not None:
            answer = await redrive(http, filter={"kind": "lost"}, limit=5, cursor=answer["next_cursor"])
            redriven.append(answer["redriven"])
        assert sum(redriven) == 12
        assert max(redriven) <= 5


@pytest.mark.parametrize(("path", "allowed"), [("", "DELETE, GET"), ("/redrive", "POST"), (f"/{ID}", "GET")])
async def test_another_method_is_told_all_that_the_path_answers(
    http: httpx.AsyncClient, path: str, allowed: str
) -> None:
    answer = await http.put(f"/dead-letters{path}")
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
