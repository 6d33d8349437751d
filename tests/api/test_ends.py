"""Result, cancel and redrive."""

from collections.abc import Callable

import httpx

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


async def test_redrive_needs_room(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(queue_limit_tasks=1)) as http:
        dead = await submit(http)
        [claimed] = await worker.claim()
        await worker.finish(claimed, "failed", error=ERROR)
        await submit(http)
        answer = await http.post(f"/tasks/{dead['id']}/redrive")
        assert (answer.status_code, answer.json()["type"]) == (429, "/problems/queue-full")
        assert int(answer.headers["retry-after"]) >= 1
