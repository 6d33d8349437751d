"""Probes, lists, keys, request ids and the documentation."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import structlog

from app.door import Door
from app.errors import KINDS
from tests.api.conftest import Worker, client_of, submit


@pytest.fixture(autouse=True)
def _as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine's Redis may need more than half a second for an answer; test_outage has one that gives none."""
    monkeypatch.setattr("app.readiness.WITHIN_S", 30)


async def test_livez_asks_nobody(gateway_of: Callable[..., Door]) -> None:
    async with client_of(gateway_of(redis_url="unix:///nowhere/at/all.sock")) as http:
        assert (await http.get("/livez")).json() == {"status": "ok"}
        assert (await http.get("/healthz")).status_code == 200
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["checks"]["redis"] == {"ok": False, "detail": "cannot be written to"}


async def test_readyz_names_each_check(http: httpx.AsyncClient) -> None:
    ready = await http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ready",
        "checks": {
            "serving": {"ok": True, "detail": "accepting"},
            "loop": {"ok": True, "detail": "0 ms late"},
            "redis": {"ok": True, "detail": "written"},
            "durability": {"ok": True, "detail": "fsync none"},
            "workers": {"ok": True, "detail": "1 alive, 1 whole"},
        },
    }


async def test_not_ready_while_no_supervisor_has_beaten_within_its_lease(
    gateway_of: Callable[..., Door], live_store: Any
) -> None:
    async with client_of(gateway_of()) as http:
        assert (await http.get("/readyz")).status_code == 503
        dead = Worker(live_store, lease_ms=-1)
        await dead.beat()
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["workers"]) == (
            503,
            {"ok": False, "detail": "no supervisor has beaten within its lease"},
        )
        [listed] = (await http.get("/workers")).json()["items"]
        assert (listed["alive"], listed["whole"]) == (False, False)


async def test_a_pool_that_is_not_whole_shows_but_does_not_stop_the_service(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    worker.info.children.clear()
    await worker.beat()
    assert (await http.get("/readyz")).status_code == 200
    [listed] = (await http.get("/workers")).json()["items"]
    assert (listed["id"], listed["alive"], listed["whole"]) == (worker.info.id, True, False)


@pytest.mark.parametrize(
    ("config", "detail"),
    [
        ({"appendonly": "no"}, "fsync none"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "fsync everysec"),
        (
            {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "allkeys-lru"},
            "fsync always; keys may be evicted (maxmemory-policy)",
        ),
        ({"appendonly": "yes", "appendfsync": "always"}, "fsync always"),
    ],
)
async def test_a_strict_service_is_ready_only_on_a_server_that_keeps(
    gateway_of: Callable[..., Door], worker: Worker, redis_client: Any, config: dict[str, str], detail: str
) -> None:
    before = {name: (await redis_client.config_get(name)) for name in ("appendonly", "appendfsync", "maxmemory-policy")}
    try:
        for name, value in config.items():
            await redis_client.config_set(name, value)
        for strict in (True, False):
            async with client_of(gateway_of(strict=strict)) as http:
                ready = (await http.get("/readyz")).json()["checks"]["durability"]
                assert ready == {"ok": not strict or detail == "fsync always", "detail": detail}
    finally:
        for found in before.values():
            for name, value in found.items():
                await redis_client.config_set(name, value)


async def test_task_types_show_their_schema_and_whether_they_are_served(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    await worker.publish(unserved={"type": "integer"})
    items = {item["type"]: item for item in (await http.get("/task-types")).json()["items"]}
    assert items["unserved"]["schema"] == {"type": "integer"}
    assert {name: item["served"] for name, item in items.items()} == {"any": True, "echo": True, "unserved": False}


async def test_a_draining_gateway_takes_nothing_new_and_answers_the_rest(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    door = gateway_of()
    async with client_of(door) as http:
        task = await submit(http)
        door.gateway.drain()
        for path in ("/tasks", f"/tasks/{task['id']}/redrive"):
            answer = await http.post(path, json={"type": "any", "payload": 1})
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/service-draining")
            assert int(answer.headers["retry-after"]) >= 1
        assert (await http.get(f"/tasks/{task['id']}")).status_code == 200
        assert (await http.post(f"/tasks/{task['id']}/cancel")).status_code == 200
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["serving"]["detail"]) == (503, "draining")


async def test_with_a_key_only_probes_and_documentation_are_open(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    async with client_of(gateway_of(api_key="s3cret-key")) as http:
        for path in ("/livez", "/readyz", "/docs", "/openapi.json", "/problems/gone"):
            assert (await http.get(path)).status_code == 200
        for method, path in (
            ("POST", "/tasks"),
            ("GET", "/tasks/x"),
            ("GET", "/workers"),
            ("GET", "/nope"),
            ("GET", "/task-types"),
        ):
            nobody = await http.request(method, path)
            assert (nobody.status_code, nobody.json()["type"]) == (401, "/problems/unauthorized")
            assert nobody.headers["www-authenticate"] == 'Bearer realm="taskgate"'
            for wrong in ("Bearer s3cret", "Bearer s3cret-key2", "Basic s3cret-key", "s3cret-key", "Bearer é"):
                refused = await http.request(method, path, headers={b"Authorization": wrong.encode()})
                assert refused.status_code == 401
                assert "invalid_token" in refused.headers["www-authenticate"]
        http.headers["Authorization"] = "bearer s3cret-key"
        task = await submit(http)
        assert (await http.get(f"/tasks/{task['id']}")).status_code == 200


async def test_a_usable_request_id_is_kept_and_another_replaced(http: httpx.AsyncClient) -> None:
    for path in ("/livez", "/tasks/x"):
        kept = await http.get(path, headers={"X-Request-ID": "abc-DEF_1.2"})
        assert kept.headers["x-request-id"] == "abc-DEF_1.2"
        for bad in ("a b", "x" * 129, "a\u2028b", "é", ""):
            replaced = await http.get(path, headers={b"X-Request-ID": bad.encode()})
            assert replaced.headers["x-request-id"] not in (bad, "")
    ids = [(await http.get("/livez")).headers["x-request-id"] for _ in range(3)]
    assert len(set(ids)) == 3


async def test_every_answer_says_that_its_type_is_meant(http: httpx.AsyncClient) -> None:
    for path in ("/livez", "/tasks/x", "/docs", "/nope", "/docs/swagger-ui.css"):
        assert (await http.get(path)).headers["x-content-type-options"] == "nosniff"


async def test_every_problem_has_a_page(http: httpx.AsyncClient) -> None:
    for slug, kind in KINDS.items():
        page = await http.get(f"/problems/{slug}")
        assert page.text.startswith(f"{kind.title} ({kind.status})")
    assert (await http.get("/problems/none")).status_code == 404


async def test_the_documentation_asks_no_other_host(http: httpx.AsyncClient) -> None:
    page = await http.get("/docs")
    assert "://" not in page.text
    assert "'unsafe-inline'" not in page.headers["content-security-policy"].split("style-src")[0]
    for asset in ("swagger-ui-bundle.js", "swagger-ui.css", "docs.js"):
        assert f'"docs/{asset}"' in page.text
        found = await http.get(f"/docs/{asset}")
        assert (found.status_code, len(found.content) > 50) == (200, True)
    for other in ("x", "..%2Fmain.py", "LICENSE"):
        assert (await http.get(f"/docs/{other}")).status_code == 404


async def test_openapi_describes_every_route(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    operations = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert operations == {
        ("GET", "/tasks"),
        ("POST", "/tasks"),
        ("GET", "/tasks/{task_id}"),
        ("DELETE", "/tasks/{task_id}"),
        ("GET", "/tasks/{task_id}/result"),
        ("GET", "/tasks/{task_id}/logs"),
        ("GET", "/tasks/{task_id}/stack"),
        ("GET", "/tasks/{task_id}/events"),
        ("POST", "/tasks/{task_id}/cancel"),
        ("POST", "/tasks/{task_id}/redrive"),
        ("GET", "/events"),
        ("GET", "/task-types"),
        ("GET", "/workers"),
        ("GET", "/queues"),
        ("GET", "/dead-letters"),
        ("DELETE", "/dead-letters"),
        ("GET", "/dead-letters/{task_id}"),
        ("POST", "/dead-letters/redrive"),
        ("GET", "/livez"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("GET", "/problems/{slug}"),
        ("POST", "/tasks/{task_id}/stream-tokens"),
        ("GET", "/keys"),
        ("POST", "/keys"),
        ("POST", "/keys/{key_id}/rotate"),
        ("DELETE", "/keys/{key_id}"),
    }
    for item in document["paths"].values():
        for operation in item.values():
            assert operation["responses"]["default"]["content"].keys() == {"application/problem+json"}
    task = document["components"]["schemas"]["TaskView"]
    assert set(task["required"]) == (await submit(http)).keys()


async def test_a_fault_of_ours_is_a_problem_that_tells_nothing(gateway_of: Callable[..., Door], worker: Worker) -> None:
    door = gateway_of()

    async def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("SECRET")

    door.gateway.status = fail  # type: ignore[assignment]
    door.gateway.store.workers = fail  # type: ignore[method-assign]
    async with client_of(door) as http:
        for path in ("/tasks/x", "/workers"):
            with structlog.testing.capture_logs() as logs:
                answer = await http.get(path)
            assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal-error")
            assert "SECRET" not in answer.text
            [fault] = [line for line in logs if line["log_level"] == "error"]
            assert fault["request_id"] == answer.headers["x-request-id"]
