"""Headers of a submission that could be understood in two ways, and bodies that are encoded."""

import gzip
import zlib
from collections.abc import Callable

import httpx
import pytest

import app.body
from app.door import Door
from taskgate.contract.store import Store
from tests.api.conftest import Worker, client_of
from tests.api.test_submit import JSON, nothing_is_queued

BODY = b'{"type":"any","payload":{"text":"hi"}}'
GZIP = {**JSON, "content-encoding": "gzip"}


@pytest.mark.parametrize("coding", ["gzip", "GZip", "x-gzip", "identity, gzip"])
async def test_a_gzip_body_is_what_was_in_it(http: httpx.AsyncClient, worker: Worker, coding: str) -> None:
    answer = await http.post("/tasks", content=gzip.compress(BODY), headers={**JSON, "content-encoding": coding})
    assert answer.status_code == 202
    [claimed] = await worker.claim()
    assert claimed.payload == b'{"text":"hi"}'


async def test_a_repeat_need_not_be_compressed_alike(http: httpx.AsyncClient, worker: Worker) -> None:
    key = {"idempotency-key": "k"}
    first = await http.post("/tasks", content=gzip.compress(BODY, mtime=1), headers={**GZIP, **key})
    for content, headers in ((gzip.compress(BODY, 1, mtime=2), GZIP), (BODY, JSON)):
        again = await http.post("/tasks", content=content, headers={**headers, **key})
        assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])


@pytest.mark.parametrize(
    ("content", "status", "slug"),
    [
        (gzip.compress(b" " * 50_000_000), 413, "body-too-large"),
        (gzip.compress(b'{"type":"any","payload":"' + b"x" * 1024**2 + b'"}'), 413, "body-too-large"),
        (gzip.compress(BODY)[:-1], 400, "bad-request"),
        (gzip.compress(BODY)[:20], 400, "bad-request"),
        (gzip.compress(BODY) + b"x", 400, "bad-request"),
        (gzip.compress(BODY) * 2, 400, "bad-request"),
        (gzip.compress(BODY)[:-8] + bytes(8), 400, "bad-request"),
        (zlib.compress(BODY), 400, "bad-request"),
        (BODY, 400, "bad-request"),
        (b"", 400, "bad-request"),
        (gzip.compress(b""), 400, "invalid-json"),
        (gzip.compress(gzip.compress(BODY)), 400, "invalid-json"),
    ],
    ids=["bomb", "over", "short", "shorter", "more", "two", "sum", "zlib", "plain", "nothing", "empty", "twice"],
)
async def test_what_is_not_one_gzip_stream_of_allowed_size_is_refused(
    http: httpx.AsyncClient, live_store: Store, content: bytes, status: int, slug: str
) -> None:
    answer = await http.post("/tasks", content=content, headers=GZIP)
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{slug}")
    assert len(answer.content) < 4_000
    assert await nothing_is_queued(live_store)


@pytest.mark.parametrize("codings", [["br"], ["gzip", "gzip"], ["gzip", "identity", "br"], ["deflate, gzip"]])
async def test_another_coding_is_refused(http: httpx.AsyncClient, live_store: Store, codings: list[str]) -> None:
    headers = [("content-type", "application/json"), *(("content-encoding", one) for one in codings)]
    answer = await http.post("/tasks", content=gzip.compress(BODY), headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-media-type")
    assert answer.headers["accept-encoding"] == "gzip"
    assert await nothing_is_queued(live_store)


async def test_identity_is_no_encoding(http: httpx.AsyncClient) -> None:
    answer = await http.post("/tasks", content=BODY, headers={**JSON, "content-encoding": "Identity"})
    assert answer.status_code == 202


@pytest.mark.parametrize("name", ["authorization", "content-type", "host", "x-tenant"])
async def test_a_header_that_may_stand_once_stands_once(
    gateway_of: Callable[..., Door], worker: Worker, live_store: Store, name: str
) -> None:
    """With two of them, a proxy could have checked one and we could take the other."""
    once = {"host": "gateway", "content-type": "application/json", "x-tenant": "a"}
    async with client_of(gateway_of(tenant_header="X-Tenant")) as http:
        headers = [*once.items(), (name, once.get(name, "x")), (name, "b")]
        answer = await http.post("/tasks", content=BODY, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/bad-request")
        assert await nothing_is_queued(live_store)
        assert (await http.post("/tasks", content=BODY, headers=once)).status_code == 202


@pytest.mark.parametrize(
    "body",
    [
        rb'{"type":"any","\u0074ype":"echo","payload":1}',
        rb'{"typ\u0065":"any","type":"any","payload":1}',
        rb'{"type":"any","payload":1,"\u0070\u0061\u0079\u006c\u006f\u0061\u0064" :2}',
        b'{"type":"any","payload":' + b"1" * 5_000 + b',"payload":1}',
        b'{"type":"any","payload":1e999,"payload":1}',
        b'{"type":"any","payload" :1,"payload":1}',
        b'{"type":"any","metadata":{},"payload":1,"metadata":{"a":1}}',
    ],
)
async def test_no_member_is_given_twice_however_it_is_spelled(
    http: httpx.AsyncClient, live_store: Store, body: bytes
) -> None:
    answer = await http.post("/tasks", content=body, headers=JSON)
    assert (answer.status_code, [fault["code"] for fault in answer.json()["errors"]]) == (422, ["duplicate"])
    assert await nothing_is_queued(live_store)


async def test_a_first_payload_that_is_not_json_does_not_hide_behind_a_second(http: httpx.AsyncClient) -> None:
    answer = await http.post("/tasks", content=b'{"type":"any","payload":"\xff","payload":1}', headers=JSON)
    assert answer.status_code == 400


async def test_all_bodies_together_have_a_bound(
    gateway_of: Callable[..., Door], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that would not fit is refused before it is read, and its room is given back whatever comes of it."""
    monkeypatch.setattr(app.body, "ROOM_BYTES", 20_000)
    fits = b'{"type":"any","payload":1}'.ljust(1_000)
    door = gateway_of(max_body_bytes=1_000)
    bodies = door._bodies
    async with client_of(door) as http:
        for content in (fits, b"{", fits + b" ", gzip.compress(fits)):
            await http.post("/tasks", content=content, headers=JSON)
        assert bodies.held == 0
        bodies.held = 20_000 - app.body.REQUEST_BYTES - 500
        refused = await http.post("/tasks", content=fits, headers=JSON)
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/overloaded")
        assert refused.headers["retry-after"] == "1"
        bodies.held -= 500
        assert (await http.post("/tasks", content=fits, headers=JSON)).status_code == 202
