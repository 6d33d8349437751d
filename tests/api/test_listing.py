"""`GET /tasks` and `DELETE /tasks/{id}`: what is one's own, newest first, and nothing that is not."""

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from app import listing
from app.door import Door
from app.filters import Wanted
from taskgate.contract import ids, keys
from taskgate.contract.models import Limits, Mark, Submission, TaskSpec
from taskgate.contract.store import Store
from tests.api.conftest import Worker, client_of, submit

ANY_TENANT = {"tenant_header": "X-Tenant"}


def submission(**more: Any) -> Submission:
    spec = TaskSpec(id=ids.new_task_id(), type="echo", **more)
    return Submission(
        id=spec.id,
        queue=spec.queue,
        type=spec.type,
        tenant=spec.tenant,
        priority=5,
        spec=msgspec.json.encode(spec),
        payload=b"{}",
    )


async def put(store: Store, *items: Submission) -> list[str]:
    for item in items:
        await store.submit([item], Limits())
    return [item.id for item in items]


async def page(http: httpx.AsyncClient, **params: Any) -> dict[str, Any]:
    answer = await http.get("/tasks", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ids_of(http: httpx.AsyncClient, **params: Any) -> list[str]:
    """Over all pages, each no larger than asked for."""
    found: list[str] = []
    while True:
        one = await page(http, **params)
        assert len(one["items"]) <= min(200, int(params.get("limit", 50)))
        found += [item["id"] for item in one["items"]]
        if one["next_cursor"] is None:
            return found
        params["cursor"] = one["next_cursor"]


async def test_tasks_are_listed_newest_first_as_they_read(http: httpx.AsyncClient, worker: Worker) -> None:
    first, second, third = [(await submit(http, metadata={"n": n}))["id"] for n in range(3)]
    [claimed] = await worker.claim()
    await worker.finish(claimed, result=b'{"n":1}')
    found = await page(http)
    assert [item["id"] for item in found["items"]] == [third, second, first]
    for item in found["items"]:
        single = (await http.get(f"/tasks/{item['id']}", headers={"Cache-Control": "no-cache"})).json()
        assert item.pop("estimate") is None or item["status"] == "queued"
        single.pop("estimate")
        assert item == single
    assert found["next_cursor"] is None


@pytest.mark.parametrize("partitions", [1, 5])
async def test_every_task_stands_on_one_page(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis, partitions: int
) -> None:
    store = Store(redis_client, partitions=partitions)
    made = await put(store, *(submission() for _ in range(60)))
    await put(store, *(submission(tenant="b") for _ in range(3)))
    created = {record.id: record.created_ms for task_id in made for record in await store.read([task_id]) if record}
    wanted = sorted(made, key=lambda task_id: (created[task_id], task_id), reverse=True)
    async with client_of(gateway_of(partitions=partitions)) as http:
        for limit in (7, 60, 500):
            assert await ids_of(http, limit=limit) == wanted
        assert (await page(http))["next_cursor"] is not None, "50 by default"


async def test_also_where_each_partition_is_looked_through_bit_by_bit(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one has shown may be older than what another has not been asked for yet."""
    monkeypatch.setattr(listing, "BATCH", 2)
    store = Store(redis_client, partitions=4)
    made = await put(store, *(submission(queue="odd" if n % 3 == 1 else "default") for n in range(60)))
    created = {record.id: record.created_ms for task_id in made for record in await store.read([task_id]) if record}
    wanted = sorted(made[1::3], key=lambda task_id: (created[task_id], task_id), reverse=True)
    async with client_of(gateway_of(partitions=4)) as http:
        for limit in (3, 50):
            assert await ids_of(http, limit=limit, queue="odd") == wanted


async def test_the_next_page_has_a_link(http: httpx.AsyncClient, worker: Worker) -> None:
    made = [(await submit(http))["id"] for _ in range(3)]
    first = await http.get("/tasks", params={"limit": 2, "type": "echo"})
    assert first.headers["link"] == f'<{first.links["next"]["url"]}>; rel="next"'
    second = await http.get(first.links["next"]["url"])
    assert [item["id"] for item in second.json()["items"]] == made[:1]
    assert "link" not in second.headers


async def test_filters(http: httpx.AsyncClient, worker: Worker) -> None:
    plain = (await submit(http, metadata={"run": "7", "n": 5, "flag": True, "x.y": None}))["id"]
    queued = (await submit(http, queue="second", metadata={"run": "7"}))["id"]
    other = (await submit(http, type="any", delay_s=60, payload=None))["id"]
    [claimed] = await worker.claim()
    assert claimed.id == plain
    for params, wanted in (
        ({"status": "running"}, [plain]),
        ({"status": "queued,scheduled"}, [other, queued]),
        ({"status": ["queued", "running"]}, [queued, plain]),
        ({"status": "failed"}, []),
        ({"type": "any"}, [other]),
        ({"type": "nothing"}, []),
        ({"queue": "second"}, [queued]),
        ({"metadata.run": "7"}, [queued, plain]),
        ({"metadata.run": "7", "metadata.n": "5"}, [plain]),
        ({"metadata.flag": "true"}, [plain]),
        ({"metadata.x.y": "null"}, [plain]),
        ({"metadata.none": "null"}, []),
        ({"metadata.run": "7", "queue": "second", "status": "queued", "type": "echo"}, [queued]),
    ):
        assert await ids_of(http, **params) == wanted, params


async def test_times_tile(http: httpx.AsyncClient, worker: Worker, redis_client: Redis) -> None:
    made = await put(Store(redis_client), *(submission() for _ in range(9)))
    middle = (await http.get(f"/tasks/{made[4]}")).json()["created_at"]
    late = await ids_of(http, created_after=middle)
    early = await ids_of(http, created_before=middle)
    assert late + early == made[::-1]
    assert made[4] in late
    assert await ids_of(http, created_after=middle, created_before=middle) == []


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=x",
        "limit=",
        "limit=1&limit=2",
        "status=nope",
        "status=",
        "status=queued,",
        "type=",
        "queue=",
        "type=a%20b",
        "queue=*",
        "created_after=yesterday",
        "created_before=2026-01-01",
        "created_after=2026-01-01T00:00:00",
        "statuss=queued",
        "metadata.=1",
        "colour=red",
    ],
)
async def test_what_cannot_be_understood_is_400(http: httpx.AsyncClient, query: str) -> None:
    answer = await http.get(f"/tasks?{query}")
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/bad-request"), answer.text


async def test_a_cursor_is_of_one_list(gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis) -> None:
    await put(Store(redis_client), *(submission(tenant=tenant) for tenant in "aabb"))
    async with client_of(gateway_of(**ANY_TENANT)) as http:
        http.headers["X-Tenant"] = "a"
        cursor = (await page(http, limit=1))["next_cursor"]
        assert len((await page(http, limit=1, cursor=cursor))["items"]) == 1
        wrong = [cursor[:-1], cursor[1:], f"{cursor}A", "x", "", "é", "a" * 10_000]
        for params in [{"cursor": cursor, "type": "echo"}, *({"cursor": each} for each in wrong)]:
            answer = await http.get("/tasks", params=params)
            assert (answer.status_code, answer.json()["type"]) == (400, "/problems/invalid-cursor"), params
        answer = await http.get("/tasks", params={"cursor": cursor}, headers={"X-Tenant": "b"})
        assert answer.status_code == 400


async def test_a_page_looks_at_a_thousand_and_goes_on_from_there(
    http: httpx.AsyncClient, worker: Worker, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short pages, even empty ones, are no end: what is rare is found all the same."""
    monkeypatch.setattr(listing, "SCANNED_A_PAGE", 10)
    rare = await put(Store(redis_client), submission(queue="rare"))
    await put(Store(redis_client), *(submission() for _ in range(25)))
    await redis_client.config_resetstat()
    first = await page(http, queue="rare")
    assert first["items"] == []
    looks = (await redis_client.info("commandstats"))["cmdstat_hmget"]["calls"]
    assert looks == 10
    assert await ids_of(http, queue="rare") == rare


async def test_one_odd_task_does_not_break_the_list(
    http: httpx.AsyncClient, worker: Worker, redis_client: Redis
) -> None:
    """F01: one whose record cannot be read, one that has vanished, one with a broken part."""
    good, vanished, broken, odd = [(await submit(http))["id"] for _ in range(4)]
    await redis_client.delete(keys.task(0, vanished))
    await redis_client.hset(keys.task(0, broken), "spec", "{")
    await redis_client.hset(keys.task(0, odd), "progress", "{")
    answer = await http.get("/tasks")
    assert answer.status_code == 200
    assert {item["id"] for item in answer.json()["items"]} == {good, broken, odd}
    assert [item["id"] for item in (await http.get("/tasks", params={"metadata.a": "b"})).json()["items"]] == []


async def test_a_list_reads_no_payloads(http: httpx.AsyncClient, worker: Worker, redis_client: Redis) -> None:
    for _ in range(5):
        await submit(http, type="any", payload="x" * 100_000)
    before = (await redis_client.info("stats"))["total_net_output_bytes"]
    await page(http)
    after = (await redis_client.info("stats"))["total_net_output_bytes"]
    assert after - before < 20_000


async def test_a_deleted_task_is_gone_everywhere(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http)
    url = f"/tasks/{task['id']}"
    early = await http.delete(url)
    assert (early.status_code, early.json()["type"]) == (409, "/problems/not-finished")
    assert early.json()["task_status"] == "queued"
    [claimed] = await worker.claim()
    await worker.finish(claimed, result=b"1")
    assert (await http.get(url, headers={"Cache-Control": "no-cache"})).json()["status"] == "succeeded"
    deleted = await http.delete(url)
    assert (deleted.status_code, deleted.content) == (204, b"")
    for method, path in (("GET", ""), ("GET", "/result"), ("GET", "/events"), ("POST", "/cancel"), ("DELETE", "")):
        assert (await http.request(method, url + path)).status_code == 404, (method, path)
    assert (await page(http))["items"] == []
    assert (await http.delete("/tasks/018bcfe5-6800-7000-8000-000000000000")).status_code == 410


async def test_after_its_deletion_an_idempotency_key_is_free(http: httpx.AsyncClient, worker: Worker) -> None:
    body = {"type": "any", "payload": 1}
    first = await http.post("/tasks", json=body, headers={"Idempotency-Key": "k"})
    [claimed] = await worker.claim()
    await worker.finish(claimed)
    await http.delete(f"/tasks/{claimed.id}")
    second = await http.post("/tasks", json={"type": "any", "payload": 2}, headers={"Idempotency-Key": "k"})
    assert second.status_code == 202
    assert second.json()["id"] != first.json()["id"]


async def test_nobody_deletes_anothers(gateway_of: Callable[..., Door], worker: Worker, redis_client: Redis) -> None:
    [task_id] = await put(Store(redis_client), submission(tenant="a"))
    await Store(redis_client).cancel(task_id)
    async with client_of(gateway_of(**ANY_TENANT)) as http:
        for tenant in ("b", "default"):
            assert (await http.delete(f"/tasks/{task_id}", headers={"X-Tenant": tenant})).status_code == 404
        assert (await http.delete(f"/tasks/{task_id}", headers={"X-Tenant": "a"})).status_code == 204


def test_a_cursor_says_where_a_page_ended() -> None:
    mark = Mark(1_800_000_000_000, ids.new_task_id())
    cursor = listing.cursor_of(mark, Wanted(), "a")
    assert listing.read_cursor(cursor, Wanted(), "a") == mark
