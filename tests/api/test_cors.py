"""Pages of other origins: those named may call everything, also what fails; others nothing. Headers of protection."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
import structlog

from app.cors import METHODS
from app.door import Door
from taskgate.contract.store import Store
from tests.api.conftest import Served, Worker, client_of, submit
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]

PAGE = "https://app.example"
OTHER = "https://evil.example"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
PROTECTION = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.fixture
def door(gateway_of: Callable[..., Door]) -> Door:
    return gateway_of(cors_origins=f"{PAGE},http://localhost:3000", tenant_header="X-Tenant")


def allowed_origin(answer: httpx.Response) -> str | None:
    found: str | None = answer.headers.get("access-control-allow-origin")
    return found


@pytest.mark.parametrize("path", ["/tasks", "/tasks/x", "/tasks/x/events", "/tasks/x/cancel", "/dead-letters", "/nope"])
async def test_a_page_of_a_named_origin_is_told_what_it_may_send(door: Door, path: str) -> None:
    async with client_of(door) as http:
        answer = await http.options(path, headers={"Origin": PAGE, **ASKS})

    assert (answer.status_code, answer.content) == (204, b"")
    assert allowed_origin(answer) == PAGE
    assert set(answer.headers["access-control-allow-methods"].split(", ")) == set(METHODS)
    taken = set(answer.headers["access-control-allow-headers"].lower().split(", "))
    assert {
        "authorization",
        "content-type",
        "idempotency-key",
        "prefer",
        "if-none-match",
        "last-event-id",
        "traceparent",
        "tracestate",
        "x-tenant",
    } <= taken
    assert answer.headers["access-control-max-age"] == "600"
    assert "access-control-allow-credentials" not in answer.headers


async def test_a_preflight_needs_no_key_and_what_follows_does(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of(cors_origins=PAGE, api_key="s3cret-key")) as http:
        asked = await http.options("/tasks", headers={"Origin": PAGE, **ASKS})
        refused = await http.post("/tasks", headers={"Origin": PAGE}, json={})

    assert (asked.status_code, refused.status_code) == (204, 401)
    assert allowed_origin(refused) == PAGE


@pytest.mark.parametrize(
    "headers", [{"Origin": OTHER, **ASKS}, {"Origin": PAGE}, ASKS, {"Origin": PAGE.upper(), **ASKS}, {"Origin": "null"}]
)
async def test_nobody_else_has_a_preflight(door: Door, headers: dict[str, str]) -> None:
    async with client_of(door) as http:
        answer = await http.options("/tasks", headers=headers)

    assert answer.status_code == 405
    assert "access-control-allow-methods" not in answer.headers


@pytest.mark.parametrize(("origin", "shown"), [(PAGE, PAGE), (OTHER, None), (None, None), ("null", None)])
async def test_only_pages_of_named_origins_may_read_answers_and_caches_know_it(
    door: Door, worker: Worker, origin: str | None, shown: str | None
) -> None:
    headers = {} if origin is None else {"Origin": origin}
    async with client_of(door) as http:
        task = await submit(http)
        answers = [
            await http.post("/tasks", json={"type": "echo", "payload": {"text": "x"}}, headers=headers),
            *[await http.get(path, headers=headers) for path in ("/livez", f"/tasks/{task['id']}", "/tasks", "/nope")],
        ]
        known = {**headers, "If-None-Match": answers[2].headers["etag"]}
        answers.append(await http.get(f"/tasks/{task['id']}", headers=known))

    assert [answer.status_code for answer in answers] == [202, 200, 200, 200, 404, 304]
    for answer in answers:
        assert allowed_origin(answer) == shown
        assert "Origin" in answer.headers["vary"].split(", ")
        assert ("Retry-After" in answer.headers.get("access-control-expose-headers", "")) == (shown is not None)


async def test_a_fault_of_ours_can_be_read_too(door: Door, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(door.gateway, "status", fails)
    monkeypatch.setattr(door.gateway.store, "workers", fails)
    with structlog.testing.capture_logs() as logged:
        async with client_of(door) as http:
            for path in ("/tasks/x", "/workers"):
                answer = await http.get(path, headers={"Origin": PAGE})
                assert (answer.status_code, allowed_origin(answer)) == (500, PAGE)
    assert [one["log_level"] for one in logged].count("error") == 2


async def test_without_origins_no_page_may_anything(gateway_of: Callable[..., Door], worker: Worker) -> None:
    async with client_of(gateway_of()) as http:
        asked = await http.options("/tasks", headers={"Origin": PAGE, **ASKS})
        got = await http.get("/livez", headers={"Origin": PAGE})

    assert asked.status_code == 405
    assert [name for answer in (asked, got) for name in answer.headers if name.startswith("access-control")] == []


async def test_every_header_that_is_documented_can_be_read(door: Door) -> None:
    async with client_of(door) as http:
        document = (await http.get("/openapi.json")).json()
        shown = (await http.get("/livez", headers={"Origin": PAGE})).headers["access-control-expose-headers"]

    documented = {
        name
        for path in document["paths"].values()
        for operation in path.values()
        if isinstance(operation, dict)
        for answer in operation["responses"].values()
        for name in answer.get("headers", {})
    }
    always_readable = {"cache-control", "content-language", "content-length", "content-type"}
    wanted = {name.lower() for name in documented} - always_readable | {"traceresponse"}
    assert len(wanted) > 5
    assert wanted <= set(shown.lower().split(", "))


async def test_every_method_of_the_api_is_allowed(door: Door) -> None:
    async with client_of(door) as http:
        document = (await http.get("/openapi.json")).json()

    used = {name.upper() for one in document["paths"].values() for name in one if name != "parameters"}
    assert used <= set(METHODS)


@pytest.mark.parametrize(
    "wrong",
    ["*", "null", "app.example", "https://app.example/", "https://APP.example", "https://u@app.example", "file://"],
)
def test_origins_are_names_as_browsers_send_them(cli: Cli, wrong: str) -> None:
    done = cli("gateway", env={"TASKGATE_CORS_ORIGINS": f"https://fine.example,{wrong}"})

    assert done.exit_code == 2
    assert done.stderr.startswith("taskgate: TASKGATE_CORS_ORIGINS: each is scheme://host")


async def test_streams_and_all_other_answers_of_a_real_server_carry_both_once(
    serve: Callable[..., Awaitable[Served]], worker: Worker
) -> None:
    served = await serve(cors_origins=PAGE)
    async with httpx.AsyncClient(base_url=served.url, headers={"Origin": PAGE}, timeout=60) as http:
        task = await submit(http)
        [claimed] = await worker.claim()
        await worker.finish(claimed)
        path = f"/tasks/{task['id']}"
        answers = [await http.get(one) for one in (path, f"{path}/events", "/tasks", "/docs", "/nope")]
        answers.append(await http.options("/tasks", headers=ASKS))
        answers.append(await http.get("/" + "x" * 9_000))

    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 404, 204, 414]
    for answer in answers:
        assert {name: answer.headers.get_list(name) for name in PROTECTION} == {k: [v] for k, v in PROTECTION.items()}
        read = answer.status_code != 414  # which never became a request
        assert answer.headers.get_list("access-control-allow-origin") == [PAGE] * read


async def test_other_servers_answer_with_the_headers_of_protection_too(http: httpx.AsyncClient) -> None:
    for path in ("/livez", "/tasks/x", "/docs", "/nope", "/tasks"):
        headers = (await http.get(path)).headers
        assert {name: headers.get_list(name) for name in PROTECTION} == {k: [v] for k, v in PROTECTION.items()}


@pytest.mark.parametrize(
    "media_type",
    [None, "text/plain", "text/plain;a=b+json", "application/x-www-form-urlencoded", "multipart/form-data;x=y"],
)
async def test_no_page_changes_anything_by_a_request_that_browsers_do_not_ask_about(
    gateway_of: Callable[..., Door], worker: Worker, live_store: Store, media_type: str | None
) -> None:
    """Without a key, on loopback: who knows no id can send only what Fetch calls simple."""
    headers = {"Origin": OTHER, "Sec-Fetch-Site": "cross-site"} | (
        {} if media_type is None else {"Content-Type": media_type}
    )
    async with client_of(gateway_of()) as http:
        document = (await http.get("/openapi.json")).json()
        posts = [path for path, one in document["paths"].items() if "post" in one and "{" not in path]
        for path in posts:
            for body in (b'{"type":"echo","payload":{"text":"x"}}', b'{"filter":{}}', b"{}", b""):
                answer = await http.post(path, content=body, headers=headers)
                assert 400 <= answer.status_code < 500, (path, answer.text)

    assert {"/tasks", "/dead-letters/redrive"} <= set(posts)
    assert await live_store.usage(0) == {}
