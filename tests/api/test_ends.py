"""Result, cancel, redrive and dead letters."""

from collections.abc import Callable

import httpx
import pytest

from app.door import Door
from taskgate.contract.store import Store
from tests.api.conftest import Worker, client_of, submit

ERROR = b'{"kind":"exception","message":"no","traceback":"..."}'


async def test_the_result_is_the_handlers_bytes(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http)
    early = await http.get(f"/tasks/{task['id']}/result")
    assert (early.status_code, early.json()["type"], early.json()["task_status"]) == (
        409,
        "/problems/not-finished",
        "queued",
    )
    assert early.headers["retry-after"] == "1"
    [claimed] = await worker.claim()
    await worker.finish(claimed, result=b'{"a": 1.0, "b":"\xc3\xa9"}')
    result = await http.get(f"/tasks/{task['id']}/result")
    assert (result.status_code, result.content) == (200, b'{"a": 1.0, "b":"\xc3\xa9"}')
    assert result.headers["content-type"] == "application/json"
    assert (await http.get(f"/tasks/{task['id']}")).json()["result_url"] == f"/tasks/{task['id']}/result"


async def test_a_result_that_retention_dropped_is_gone_and_the_task_is_not(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    task = await submit(http)
    [claimed] = await worker.claim()
    await worker.finish(claimed, result=b'"%s"' % (b"x" * 4000))
    frugal = Store(worker.store._redis, retention_bytes=3000)
    assert await frugal.trim(0) == 1
    result = await http.get(f"/tasks/{task['id']}/result")
    assert (result.status_code, result.json()["type"]) == (410, "/problems/gone")
    assert "TASKGATE_RETENTION_BYTES" in result.json()["detail"]
    shown = (await http.get(f"/tasks/{task['id']}", headers={"Cache-Control": "no-cache"})).json()
    assert (shown["status"], shown["result_url"]) == ("succeeded", None)


async def test_a_failed_task_has_no_result(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http)
    [claimed] = await worker.claim()
    await worker.finish(claimed, "failed", error=ERROR)
    result = await http.get(f"/tasks/{task['id']}/result")
    assert (result.status_code, result.headers["x-task-status"], result.content) == (204, "failed", b"")
    shown = (await http.get(f"/tasks/{task['id']}")).json()
    assert shown["error"] == {"kind": "exception", "message": "no", "traceback": "..."}
    assert shown["result_url"] is None


async def test_cancel_says_whether_it_has_happened(http: httpx.AsyncClient, worker: Worker) -> None:
    task = await submit(http)
    url = f"/tasks/{task['id']}/cancel"
    for _ in range(2):
        answer = await http.post(url)
        assert (answer.status_code, answer.json()["status"]) == (200, "canceled")
    assert await worker.claim() == []

    running = await submit(http)
    [claimed] = await worker.claim()
    for _ in range(2):
        answer = await http.post(f"/tasks/{running['id']}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (202, "canceling")
        assert answer.json()["cancel_requested"] is True
    await worker.finish(claimed, "canceled")
    assert (await http.post(f"/tasks/{running['id']}/cancel")).status_code == 200

    done = await submit(http)
    [claimed] = await worker.claim()
    await worker.finish(claimed)
    answer = await http.post(f"/tasks/{done['id']}/cancel")
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/not-cancelable")
    assert answer.json()["task_status"] == "succeeded"


async def test_a_cancel_is_seen_by_the_next_poll(http: httpx.AsyncClient) -> None:
    task = await submit(http)
    assert (await http.get(f"/tasks/{task['id']}")).json()["status"] == "queued"
    await http.post(f"/tasks/{task['id']}/cancel")
    assert (await http.get(f"/tasks/{task['id']}")).json()["status"] == "canceled"


async def test_dead_letters_are_listed_and_redriven(http: httpx.AsyncClient, worker: Worker) -> None:
    dead: list[str] = []
    for _ in range(3):
        task = await submit(http)
        [claimed] = await worker.claim()
        await worker.finish(claimed, "failed", error=ERROR)
        dead.insert(0, task["id"])
    listed = (await http.get("/dead-letters")).json()
    assert [item["id"] for item in listed["items"]] == dead
    assert listed["next_before_ms"] is None
    assert (await http.get("/dead-letters", params={"queue": "other"})).json()["items"] == []

    answer = await http.post(f"/tasks/{dead[0]}/redrive", headers={"X-Request-ID": "one"})
    assert (answer.status_code, answer.json()["status"], answer.json()["attempt"]) == (202, "queued", 0)
    assert (await http.post(f"/tasks/{dead[0]}/redrive", headers={"X-Request-ID": "one"})).status_code == 202
    twice = await http.post(f"/tasks/{dead[0]}/redrive", headers={"X-Request-ID": "two"})
    assert (twice.status_code, twice.json()["type"]) == (409, "/problems/not-dead")
    assert [item["id"] for item in (await http.get("/dead-letters")).json()["items"]] == dead[1:]
    [claimed] = await worker.claim()
    assert (claimed.id, claimed.attempt) == (dead[0], 1)


async def test_dead_letters_come_in_pages(http: httpx.AsyncClient, worker: Worker) -> None:
    made = set()
    for _ in range(5):
        task = await submit(http)
        [claimed] = await worker.claim()
        await worker.finish(claimed, "failed", error=ERROR)
        made.add(task["id"])
    seen: list[str] = []
    before: dict[str, int] = {}
    while True:
        page = (await http.get("/dead-letters", params={"limit": 2, **before})).json()
        seen += [item["id"] for item in page["items"]]
        if page["next_before_ms"] is None:
            break
        before = {"before_ms": page["next_before_ms"]}
    assert len(seen) == len(set(seen))
    assert set(seen) <= made


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "before_ms=-1", "queue=a/b", "queue=*"])
async def test_bad_list_parameters_are_400(http: httpx.AsyncClient, query: str) -> None:
    answer = await http.get(f"/dead-letters?{query}")
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/bad-request")


async def test_dead_letters_of_others_are_not_shown(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(tenant_header="X-Tenant")) as http:
        await http.post("/tasks", json={"type": "any", "payload": 1}, headers={"X-Tenant": "a"})
        [claimed] = await worker.claim()
        await worker.finish(claimed, "failed", error=ERROR)
        assert (await http.get("/dead-letters", headers={"X-Tenant": "b"})).json()["items"] == []
        [item] = (await http.get("/dead-letters", headers={"X-Tenant": "a"})).json()["items"]
        assert item["id"] == claimed.id


async def test_redrive_needs_room(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(queue_limit_tasks=1)) as http:
        dead = await submit(http)
        [claimed] = await worker.claim()
        await worker.finish(claimed, "failed", error=ERROR)
        await submit(http)
        answer = await http.post(f"/tasks/{dead['id']}/redrive")
        assert (answer.status_code, answer.json()["type"]) == (429, "/problems/queue-full")
        assert int(answer.headers["retry-after"]) >= 1
