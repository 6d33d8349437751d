"""`GET /tasks/{id}`: fresh enough, cheap to repeat, and nobody else's."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from app.door import Door
from taskgate.contract import ids, keys
from tests.api.conftest import Worker, client_of, submit
from tests.conftest import eventually

FRESH = {"Cache-Control": "no-cache"}


async def test_a_live_task_may_be_half_a_second_old_and_no_cache_asks_for_now(
    http: httpx.AsyncClient, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr("app.snapshots.time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    task = await submit(http)

    async def status(**headers: str) -> str:
        return str((await http.get(f"/tasks/{task['id']}", headers=headers)).json()["status"])

    assert await status() == "queued"
    [claimed] = await worker.claim()
    now += 0.499
    assert await status() == "queued"
    assert await status(**FRESH) == "running"
    assert await status() == "running"
    await worker.finish(claimed)
    now += 0.499
    assert await status() == "running"
    now += 0.002
    assert await status() == "succeeded"


async def test_many_readers_are_one_read(gateway_of: Callable[..., Door], worker: Worker, redis_client: Any) -> None:
    """Also those that come while it is under way."""
    door = gateway_of()
    [group] = door.gateway.snapshots._groups

    async def under_way() -> bool:
        return group._runner is not None and not group._waiting

    async def calls() -> int:
        found: int = (await redis_client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        return found

    async with client_of(door) as http:
        task = await submit(http)
        before = await calls()
        await redis_client.client_pause(300)
        first = asyncio.ensure_future(http.get(f"/tasks/{task['id']}"))
        await eventually(under_way, bool, every_s=0)
        answers = await asyncio.gather(first, *(http.get(f"/tasks/{task['id']}") for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        assert await calls() - before in (1, 2), "of the task, and perhaps of what estimates are made of"


async def test_a_task_that_runs_shows_what_it_does(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http)
    [claimed] = await worker.claim()
    progress = b'{"current":3,"total":4,"percent":75.0,"unit":"files","stage":"count","message":"x","at_ms":1}'
    await worker.report(claimed, progress=progress, effort=b'{"cpu_ms":12}', health="computing")
    shown = (await http.get(f"/tasks/{task['id']}", headers=FRESH)).json()
    assert (shown["status"], shown["health"], shown["attempt"], shown["worker"]) == (
        "running",
        "computing",
        1,
        worker.info.id,
    )
    assert shown["progress"].pop("age_ms") > 1_000_000
    assert shown["progress"] == {
        "current": 3,
        "total": 4,
        "percent": 75.0,
        "unit": "files",
        "stage": "count",
        "message": "x",
    }
    assert shown["effort"] == {"cpu_ms": 12}
    assert 0 <= shown["heartbeat_age_ms"] < 30_000
    assert shown["started_at"] is not None


async def test_without_its_liveness_key_a_running_task_is_lost(
    http: httpx.AsyncClient, worker: Worker, redis_client: Any
) -> None:
    """It says so, and calls the supervisors to look."""
    task = await submit(http)
    [claimed] = await worker.claim()
    claimed_ms = int(await redis_client.hget(keys.task(0, claimed.id), "started"))
    await redis_client.hset(keys.task(0, claimed.id), "started", claimed_ms - worker.info.lease_ms - 1)
    async with redis_client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe(keys.notices(0))
        shown = (await http.get(f"/tasks/{task['id']}", headers=FRESH)).json()
        assert (shown["status"], shown["health"], shown["heartbeat_age_ms"]) == ("running", "lost", None)

        async def heard() -> Any:
            message = await pubsub.get_message(timeout=0.1)
            return message and message["data"]

        await eventually(heard, lambda data: data == b"look")


async def test_a_matching_etag_is_304_until_something_changes(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http)
    url = f"/tasks/{task['id']}"
    first = await http.get(url)
    assert first.headers["etag"] == 'W/"1"'
    assert (first.headers["cache-control"], first.headers["retry-after"]) == ("private, no-cache", "1")
    for asked in ('W/"1"', '"1"', 'W/"7", W/"1"', "*"):
        same = await http.get(url, headers={"If-None-Match": asked})
        assert (same.status_code, same.content) == (304, b"")
        for name in ("etag", "cache-control", "vary", "retry-after"):
            assert same.headers[name] == first.headers[name]
    lines = [("If-None-Match", 'W/"1"'), ("If-None-Match", 'W/"11"')]
    assert (await http.get(url, headers=lines)).status_code == 304, "a list may come in several lines"
    assert (await http.get(url, headers={"If-None-Match": 'W/"11"'})).status_code == 200
    await worker.claim()
    changed = await http.get(url, headers={"If-None-Match": 'W/"1"', **FRESH})
    assert (changed.status_code, changed.headers["etag"]) == (200, 'W/"2"')


async def test_of_the_ends_only_a_failure_may_still_change(http: httpx.AsyncClient, worker: Worker) -> None:
    for outcome, caching in (("succeeded", "private, max-age=60"), ("failed", "private, no-cache")):
        task = await submit(http)
        [claimed] = await worker.claim()
        await worker.finish(
            claimed, outcome, error=b'{"kind":"exception","message":"no"}' if outcome == "failed" else b""
        )
        ended = await http.get(f"/tasks/{task['id']}")
        assert ended.json()["status"] == outcome
        assert ended.json()["poll_after_ms"] is None
        assert "retry-after" not in ended.headers
        assert ended.headers["cache-control"] == caching


async def test_a_read_that_was_overtaken_does_not_turn_a_status_back(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    """F12: an old answer that arrives after a newer one is not kept."""
    door = gateway_of(status_cache_ms=60_000)
    async with client_of(door) as http:
        task = await submit(http)
        snapshots = door.gateway.snapshots
        [old] = await door.gateway.store.read([task["id"]])
        [claimed] = await worker.claim()
        assert (await snapshots.fresh(task["id"], "default")).record.status == "running"

        async def stale_read(_: str) -> Any:
            return old

        snapshots._groups = [stale_read]  # type: ignore[list-item]
        assert (await snapshots.fresh(task["id"], "default")).record.status == "running"
        assert (await snapshots.get(claimed.id, "default")).record.status == "running"


async def test_fields_are_picked(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http, metadata={"a": {"b": 1}})
    url = f"/tasks/{task['id']}"

    async def picked(fields: str) -> Any:
        answer = await http.get(url, params={"fields": fields}, headers=FRESH)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found.pop("id") == task["id"]
        return found

    assert await picked("status,queue") == {"status": "queued", "queue": "default"}
    assert await picked("") == {}
    assert await picked("urls(self,events)") == {"urls": {"self": url, "events": f"{url}/events"}}
    assert await picked("urls.self,urls/result") == {"urls": {"self": url, "result": f"{url}/result"}}
    assert await picked("progress(percent),metadata(a,c)") == {"progress": None, "metadata": {"a": {"b": 1}, "c": None}}
    assert await picked("result") == {"result": None}
    [claimed] = await worker.claim()
    await worker.finish(claimed, result=b'{"n":1e2}')
    assert await picked("result,status") == {"result": {"n": 100}, "status": "succeeded"}
    everything = await picked("*")
    assert {"status", "result", "urls"} <= everything.keys()


@pytest.mark.parametrize(
    "fields", ["nope", "status,", "status(x)", "progress(nope)", "urls.nope", "urls((self))", "a b", "id;drop"]
)
async def test_an_unknown_field_is_400(http: httpx.AsyncClient, fields: str) -> None:
    task = await submit(http)
    answer = await http.get(f"/tasks/{task['id']}", params={"fields": fields})
    if fields == "status,":
        assert answer.status_code == 200
    else:
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/unknown-field")


async def test_the_etag_of_a_part_is_another(http: httpx.AsyncClient) -> None:
    task = await submit(http)
    url = f"/tasks/{task['id']}"
    whole = (await http.get(url)).headers["etag"]
    part = (await http.get(url, params={"fields": "status"})).headers["etag"]
    assert part != whole
    for etag, status in ((part, 304), (whole, 200)):
        again = await http.get(url, params={"fields": "status"}, headers={"If-None-Match": etag})
        assert again.status_code == status


async def test_what_is_decided_at_the_read_is_in_the_etag(
    http: httpx.AsyncClient, worker: Worker, redis_client: Any
) -> None:
    """`lost` is no write, and so no version: who asks with the ETag of before learns it all the same."""
    url = f"/tasks/{(await submit(http))['id']}"
    [claimed] = await worker.claim()
    reads: list[dict[str, str]] = [{}, {"fields": "health"}]
    known = [(await http.get(url, params=params, headers=FRESH)).headers["etag"] for params in reads]
    claimed_ms = int(await redis_client.hget(keys.task(0, claimed.id), "started"))
    await redis_client.hset(keys.task(0, claimed.id), "started", claimed_ms - worker.info.lease_ms - 1)
    for params, etag in zip(reads, known, strict=True):
        lost = await http.get(url, params=params, headers={"If-None-Match": etag, **FRESH})
        assert (lost.status_code, lost.json()["health"]) == (200, "lost")
        again = {"If-None-Match": lost.headers["etag"], **FRESH}
        assert (await http.get(url, params=params, headers=again)).status_code == 304
    await worker.beat(claimed)
    found = await http.get(url, headers={"If-None-Match": 'W/"2-lost"', **FRESH})
    assert (found.status_code, found.headers["etag"]) == (200, 'W/"2"')


async def test_what_a_queued_task_waits_for_is_in_the_etag(
    http: httpx.AsyncClient, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.estimates.RENEW_S", 0.0)
    monkeypatch.setattr("app.estimates.OLD_S", 0.0)
    url = f"/tasks/{(await submit(http))['id']}"
    room = await http.get(url, headers=FRESH)
    assert (room.headers["etag"], room.json()["stage"]) == ('W/"1"', "waiting for room to run")
    worker.info = msgspec.structs.replace(worker.info, types=[])
    await worker.beat()
    alone = await http.get(url, headers={"If-None-Match": 'W/"1"', **FRESH})
    assert (alone.status_code, alone.json()["stage"]) == (200, "waiting for a worker")
    again = {"If-None-Match": alone.headers["etag"], **FRESH}
    assert (await http.get(url, headers=again)).status_code == 304


async def test_a_result_that_is_known_is_not_read(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = gateway_of()
    async with client_of(door) as http:
        url = f"/tasks/{(await submit(http))['id']}"
        [claimed] = await worker.claim()
        await worker.finish(claimed, result=b'"large"')
        paths = (f"{url}?fields=result", f"{url}/result")
        known = [(await http.get(path)).headers["etag"] for path in paths]

        async def result(_: str) -> Any:
            raise AssertionError("the result was read")

        monkeypatch.setattr(door.gateway.store, "result", result)
        for path, etag in zip(paths, known, strict=True):
            answer = await http.get(path, headers={"If-None-Match": etag})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)


ODD = [
    "x",
    "*",
    "[a-z]",
    "a%2Fb",
    "%00",
    "%25",
    "a:b",
    "a{b}c",
    "%20",
    "%C3%A9",
    "e%CC%81",
    "%E2%80%8F",
    "x" * 10_000,
    "01A22808-5400-7000-BB16-08D4BFCAD1AC",
    "01a22808540070008b1608d4bfcad1ac",
    "a%3Fb%23c",
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[:20])
async def test_odd_ids_address_nothing(http: httpx.AsyncClient, odd: str) -> None:
    """F13: only ids that we made; never a pattern, a path or an error of ours."""
    await submit(http)
    for method, path in (
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/result"),
        ("POST", "/cancel"),
        ("POST", "/redrive"),
    ):
        answer = await http.request(method, f"/tasks/{odd}{path}")
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found"), (method, path)


async def test_anothers_task_is_404_everywhere(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(tenant_header="X-Tenant")) as http:
        answer = await http.post("/tasks", json={"type": "any", "payload": 1}, headers={"X-Tenant": "a"})
        task_id = answer.json()["id"]
        assert (await http.get(f"/tasks/{task_id}", headers={"X-Tenant": "a"})).status_code == 200
        for headers in ({"X-Tenant": "b"}, {}):
            for method, path in (
                ("GET", ""),
                ("GET", "/events"),
                ("GET", "/result"),
                ("POST", "/cancel"),
                ("POST", "/redrive"),
            ):
                answer = await http.request(method, f"/tasks/{task_id}{path}", headers=headers)
                assert answer.status_code == 404, (method, path)
        assert (await http.get(f"/tasks/{task_id}", headers={"X-Tenant": "a"})).json()["status"] == "queued"
        odd = await http.get(f"/tasks/{task_id}", headers={"X-Tenant": "a b"})
        assert (odd.status_code, odd.json()["type"]) == (400, "/problems/bad-request")


async def test_without_a_tenant_header_setting_the_header_means_nothing(http: httpx.AsyncClient) -> None:
    task = await submit(http)
    assert (await http.get(f"/tasks/{task['id']}", headers={"X-Tenant": "b"})).status_code == 200


async def test_a_task_that_was_is_gone_and_one_that_never_was_is_not_found(http: httpx.AsyncClient) -> None:
    fresh = await http.get(f"/tasks/{ids.new_task_id()}")
    assert (fresh.status_code, fresh.json()["type"]) == (404, "/problems/not-found")
    old = await http.get("/tasks/018bcfe5-6800-7000-8000-000000000000")
    assert (old.status_code, old.json()["type"]) == (410, "/problems/gone")


async def test_other_methods_are_405(http: httpx.AsyncClient) -> None:
    task = await submit(http)
    for method, path, allowed in (
        ("DELETE", "/tasks", "GET, HEAD, POST"),
        ("PUT", "/tasks", "GET, HEAD, POST"),
        ("PUT", f"/tasks/{task['id']}", "GET, HEAD, DELETE"),
        ("GET", f"/tasks/{task['id']}/cancel", "POST"),
        ("POST", "/livez", "GET"),
    ):
        answer = await http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed), (method, path)
        assert answer.json()["type"] == "/problems/method-not-allowed"
