"""Who may what: keys, scopes, tenants, and stream tokens, over every route there is."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import structlog
from redis.asyncio import Redis

from app import access, api_keys, stream_tokens
from app.door import Door
from app.scopes import ROUTES
from taskgate.contract.api_keys import new_key
from taskgate.contract.errors import StoreUnavailable
from taskgate.contract.ids import new_task_id
from taskgate.contract.store import Store
from tests.api.conftest import Worker, client_of, submit
from tests.conftest import eventually
from tests.contract.test_api_keys import kept

BOOTSTRAP = "the-first-key"
GUARDED = {route: scope for route, scope in ROUTES.items() if scope is not None}
PUBLIC = [route for route, scope in ROUTES.items() if scope is None]
Http = httpx.AsyncClient


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def made(door: Door, *scopes: str, **more: Any) -> str:
    """A key with these scopes; all of them where none is named."""
    body = {"name": "test", "scopes": scopes or sorted(set(GUARDED.values())), **more}
    async with client_of(door) as http:
        answer = await http.post("/keys", json=body, headers=bearer(BOOTSTRAP))
    assert answer.status_code == 201, answer.text
    key: str = answer.json()["key"]
    return key


def caller(door: Door, key: str) -> Http:
    http = client_of(door)
    http.headers.update(bearer(key))
    return http


def guard_of(door: Door) -> access.Access:
    assert door.gateway.access is not None
    return door.gateway.access


@pytest.fixture
async def door(gateway_of: Callable[..., Door], worker: Worker) -> Door:
    return gateway_of(api_key=BOOTSTRAP)


@pytest.fixture
async def listening(door: Door) -> AsyncIterator[Door]:
    """It hears what others tell."""
    hub = asyncio.create_task(door.gateway.hub.run())
    yield door
    hub.cancel()
    await asyncio.gather(hub, return_exceptions=True)


async def ask(http: Http, route: str, task_id: str = "x", key_id: str = "x") -> httpx.Response:
    """As the table names it, with a body that fits."""
    method, _, path = route.partition(" ")
    bodies: dict[str, Any] = {
        "POST /tasks": {"type": "echo", "payload": {"text": "hello"}},
        "POST /dead-letters/redrive": {"ids": [task_id]},
        "POST /keys": {"name": "n", "scopes": ["keys:admin"]},
        "POST /keys/{key_id}/rotate": {},
    }
    queries = {"GET /events": {"task": task_id}, "DELETE /dead-letters": {"all": "true"}}
    path = path.format(task_id=task_id, key_id=key_id, slug="gone", name="docs.js")
    return await http.request(method, path, json=bodies.get(route), params=queries.get(route))


def test_the_table_names_exactly_the_routes_that_there_are(door: Door) -> None:
    def routes(found: Any) -> set[str]:
        inner = [each for one in found if hasattr(one, "original_router") for each in one.original_router.routes]
        own = {f"{method} {one.path}" for one in found for method in getattr(one, "methods", None) or ()}
        return own | (routes(inner) if inner else set())

    hot = {"POST /tasks", "GET /tasks/{task_id}"}
    assert routes(door._api.routes) | hot == set(ROUTES)  # type: ignore[attr-defined]


async def test_every_route_but_the_public_ones_wants_a_key(door: Door) -> None:
    async with client_of(door) as http:
        for route in GUARDED:
            answer = await ask(http, route)
            assert answer.status_code == 401, route
            assert answer.headers["www-authenticate"] == 'Bearer realm="taskgate"'
            assert answer.json()["type"] == "/problems/unauthorized"
        for route in PUBLIC:
            assert (await ask(http, route)).status_code in (200, 503), route
        for path in ("/livezz", "/docsx", "/nope", "/tasks/a/b/c", "/problems"):
            assert (await http.get(path)).status_code == 401, path


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer", b"Bearer ", b"Bearer nonsense", b"Basic dGhlLWZpcnN0LWtleTo=", b"the-first-key", b"Bearer \xff\xfe",
        b"Bearer the-first-key2", b"Bearer the-first-ke", b"Bearer the-first-key the-first-key",
    ],
)  # fmt: skip
async def test_what_is_no_key_of_ours_is_refused_as_such(door: Door, header: bytes) -> None:
    async with client_of(door) as http:
        for path in ("/tasks", "/tasks/x"):
            answer = await http.get(path, headers=[(b"authorization", header)])
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == 'Bearer realm="taskgate", error="invalid_token"'


async def test_a_key_that_was_never_made_is_refused(door: Door) -> None:
    async with caller(door, new_key()) as http:
        for _ in range(2):
            answer = await http.get("/tasks")
            assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthorized")


async def test_each_route_wants_its_scope_and_no_other(door: Door) -> None:
    every = set(GUARDED.values())
    for scope in every:
        async with (
            caller(door, await made(door, scope)) as just,
            caller(door, await made(door, *(every - {scope}))) as others,
        ):
            for route in (each for each, needed in GUARDED.items() if needed == scope):
                assert (await ask(just, route)).status_code not in (401, 403), route
                refused = await ask(others, route)
                assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden"), route
                challenge = f'Bearer realm="taskgate", error="insufficient_scope", scope="{scope}"'
                assert refused.headers["www-authenticate"] == challenge


async def nothing_there(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")


async def no_items(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["items"]) == (200, [])


async def nothing_done(answer: httpx.Response) -> None:
    counts = {name: value for name, value in answer.json().items() if isinstance(value, int)}
    assert answer.status_code == 200
    assert not counts.get("redriven")
    assert not counts.get("deleted")


async def untold(answer: httpx.Response) -> None:
    """Of the one whose things these are; the rest of the answer is everybody's."""
    assert answer.status_code in (200, 202)
    assert "owner" not in answer.text


SEEN_BY_OTHERS: dict[str, Callable[[httpx.Response], Awaitable[None]]] = {
    "GET /tasks": no_items,
    "GET /tasks/{task_id}": nothing_there,
    "DELETE /tasks/{task_id}": nothing_there,
    "GET /tasks/{task_id}/result": nothing_there,
    "GET /tasks/{task_id}/events": nothing_there,
    "POST /tasks/{task_id}/stream-tokens": nothing_there,
    "GET /tasks/{task_id}/logs": nothing_there,
    "GET /tasks/{task_id}/stack": nothing_there,
    "POST /tasks/{task_id}/cancel": nothing_there,
    "POST /tasks/{task_id}/redrive": nothing_there,
    "GET /events": nothing_there,
    "GET /dead-letters": no_items,
    "GET /dead-letters/{task_id}": nothing_there,
    "POST /dead-letters/redrive": nothing_done,
    "DELETE /dead-letters": nothing_done,
    "GET /task-types": untold,
    "GET /workers": untold,
    "GET /queues": untold,
    "GET /keys": untold,
    "POST /keys": nothing_there,
    "POST /keys/{key_id}/rotate": nothing_there,
    "DELETE /keys/{key_id}": nothing_there,
    "GET /metrics": untold,
    "POST /tasks": untold,
}
"""What another tenant's key gets for each route; a new route needs a line here."""


async def test_what_is_of_another_tenant_is_not_there(door: Door, worker: Worker) -> None:
    """One running and one dead task of an owner, and its key: nothing shows, tells of, or changes them."""
    assert SEEN_BY_OTHERS.keys() == GUARDED.keys()
    async with (
        caller(door, await made(door, tenant="owner", name="key-of-owner")) as owner,
        caller(door, await made(door, tenant="other")) as other,
    ):
        [of_owner] = [one for one in (await owner.get("/keys")).json()["items"] if one["tenant"] == "owner"]
        dead = (await submit(owner, queue="default"))["id"]
        [claimed] = await worker.claim()
        await worker.finish(claimed, "failed", error=b'{"kind":"exception","message":"owner"}')
        running = (await submit(owner, metadata={"of": "owner"}))["id"]
        [held] = await worker.claim()
        worker.info.children[0]["tasks"] = [running]
        worker.info.children[0]["of"] = "nobody"
        await worker.beat(held)
        before = [(await owner.get(f"/tasks/{each}")).json()["status"] for each in (dead, running)]
        assert before == ["failed", "running"]

        for route, check in SEEN_BY_OTHERS.items():
            if route != "POST /keys":
                for task_id in (dead, running):
                    answer = await ask(other, route, task_id, of_owner["id"])
                    assert route == "POST /tasks" or running not in answer.text.replace(answer.request.url.path, "")
                    await check(answer)
        refused = await other.post("/keys", json={"name": "n", "scopes": ["tasks:read"], "tenant": "owner"})
        assert refused.status_code == 403

        after = [
            (await owner.get(f"/tasks/{each}", headers={"Cache-Control": "no-cache"})).json()
            for each in (dead, running)
        ]
        assert [each["status"] for each in after] == before
        assert {one["id"] for one in (await owner.get("/tasks")).json()["items"]} == {dead, running}
        assert [one["id"] for one in (await owner.get("/keys")).json()["items"]] == [of_owner["id"]]


async def test_a_task_that_nobody_has_answers_as_one_of_another(door: Door) -> None:
    """So nobody learns which ids there are."""
    async with (
        caller(door, await made(door, tenant="owner")) as owner,
        caller(door, await made(door, tenant="other")) as other,
    ):
        there, nowhere = (await submit(owner))["id"], new_task_id()
        for route in (each for each in GUARDED if "{task_id}" in each):
            mine, none = [(await ask(other, route, each)).json() for each in (there, nowhere)]
            for answer in (mine, none):
                del answer["instance"], answer["request_id"]
            assert mine == none, route


async def test_the_key_decides_the_tenant_not_a_header(gateway_of: Callable[..., Door], worker: Worker) -> None:
    door = gateway_of(api_key=BOOTSTRAP, tenant_header="X-Tenant")
    async with caller(door, await made(door, tenant="a")) as http, caller(door, BOOTSTRAP) as first:
        assert (await http.get("/tasks", headers={"X-Tenant": "b"})).status_code == 403
        task = await submit(http)
        assert (await http.get(f"/tasks/{task['id']}", headers={"X-Tenant": "a"})).status_code == 200
        assert (await first.get(f"/tasks/{task['id']}", headers={"X-Tenant": "a"})).status_code == 200
        assert (await first.get(f"/tasks/{task['id']}", headers={"X-Tenant": "b"})).status_code == 404
        assert (await first.get(f"/tasks/{task['id']}")).status_code == 404


async def test_keys_are_shown_once_and_listed_without_themselves(door: Door) -> None:
    async with caller(door, BOOTSTRAP) as http:
        options = {"tenant": "t", "rate_per_s": 5, "burst": 9, "streams": 2, "expires_in_s": 3600}
        new = (
            await http.post("/keys", json={"name": "ci", "scopes": ["tasks:write", "tasks:write"], **options})
        ).json()
        key = new.pop("key")
        assert new["scopes"] == ["tasks:write"]
        assert (new["rate_per_s"], new["burst"], new["streams"], new["hint"]) == (5, 9, 2, key[-4:])
        assert new["last_used_at"] is None
        listed = await http.get("/keys")
        assert listed.json()["items"] == [new]
        assert key not in listed.text
    async with caller(door, key) as own:
        await submit(own)
    async with caller(door, BOOTSTRAP) as http:
        assert (await http.get("/keys")).json()["items"][0]["last_used_at"] is not None


@pytest.mark.parametrize(
    "body",
    [
        {}, {"name": "n"}, {"name": "n", "scopes": []}, {"name": "n", "scopes": ["all"]},
        {"name": "", "scopes": ["tasks:read"]},
        {"name": "a\nb", "scopes": ["tasks:read"]}, {"name": "n", "scopes": ["tasks:read"], "tenant": "a:b"},
        {"name": "n", "scopes": ["tasks:read"], "burst": 3}, {"name": "n", "scopes": ["tasks:read"], "rate_per_s": 0},
        {"name": "n", "scopes": ["tasks:read"], "expires_in_s": 0}, {"name": "n", "scopes": ["tasks:read"], "more": 1},
    ],
)  # fmt: skip
async def test_what_makes_no_key_is_said(door: Door, body: dict[str, Any]) -> None:
    async with caller(door, BOOTSTRAP) as http:
        answer = await http.post("/keys", json=body)
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")
        assert (await http.get("/keys")).json()["items"] == []


async def test_no_key_makes_one_that_may_more(door: Door) -> None:
    async with (
        caller(door, await made(door, "keys:admin", "tasks:read", tenant="a")) as admin,
        caller(door, BOOTSTRAP) as first,
    ):
        strong = (await first.post("/keys", json={"name": "s", "scopes": ["tasks:write"], "tenant": "a"})).json()
        assert (await admin.post("/keys", json={"name": "n", "scopes": ["tasks:write"]})).status_code == 403
        assert (await admin.post(f"/keys/{strong['id']}/rotate", json={})).status_code == 403
        assert (await admin.post("/keys", json={"name": "n", "scopes": ["tasks:read"]})).json()["tenant"] == "a"
        assert (await admin.delete(f"/keys/{strong['id']}")).status_code == 204


async def test_no_key_makes_one_that_may_more_often_or_longer(door: Door) -> None:
    """What is not asked for is as it has it itself, and to replace another's key is to make one."""
    limits = {"rate_per_s": 10, "burst": 3, "streams": 2}
    scopes = ["keys:admin", "tasks:write"]
    mine = await made(door, *scopes, tenant="a", expires_in_s=3600, **limits)
    async with caller(door, mine) as admin, caller(door, BOOTSTRAP) as first:
        own = (await admin.get("/keys")).json()["items"][0]
        like_it = (await admin.post("/keys", json={"name": "n", "scopes": scopes})).json()
        same = (*limits, "expires_at", "tenant")
        assert [like_it[name] for name in same] == [own[name] for name in same]
        less = {"rate_per_s": 5, "streams": 1, "expires_in_s": 60}
        assert (await admin.post("/keys", json={"name": "n", "scopes": scopes, **less})).json()["burst"] == 3
        more = ({"rate_per_s": 11}, {"rate_per_s": 10, "burst": 4}, {"streams": 3}, {"expires_in_s": 4000})
        for one in more:
            refused = await admin.post("/keys", json={"name": "n", "scopes": scopes, **one})
            assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden"), one

        strong = (await first.post("/keys", json={"name": "s", "scopes": scopes, "tenant": "a"})).json()
        assert (await admin.post(f"/keys/{strong['id']}/rotate", json={})).status_code == 403
        assert (await admin.post(f"/keys/{own['id']}/rotate", json={})).json()["expires_at"] == own["expires_at"]


async def test_one_tenants_admin_takes_no_other_tenants_room(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "MOST_OF_TENANT", 2)
    async with caller(door, await made(door, tenant="a")) as admin, caller(door, await made(door, tenant="b")) as other:
        body = {"name": "n", "scopes": ["tasks:read"]}
        assert [(await admin.post("/keys", json=body)).status_code for _ in range(2)] == [201, 409]
        assert (await other.post("/keys", json=body)).status_code == 201
        await made(door, tenant="a")


async def test_a_replaced_key_is_good_for_its_grace(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    old = await made(door, tenant="t", rate_per_s=7)
    async with caller(door, BOOTSTRAP) as first, caller(door, old) as http:
        [listed] = (await first.get("/keys")).json()["items"]
        rotated = (await first.post(f"/keys/{listed['id']}/rotate", json={"grace_s": 600})).json()
        same = ("name", "tenant", "scopes", "rate_per_s", "burst", "streams")
        assert [rotated[name] for name in same] == [listed[name] for name in same]
        async with caller(door, rotated["key"]) as new:
            assert (await new.get("/tasks")).status_code == 200
        assert (await http.get("/tasks")).status_code == 200
        ends = {one["id"]: one["expires_at"] for one in (await first.get("/keys")).json()["items"]}
        assert ends[rotated["id"]] is None
        assert ends[listed["id"]] is not None

        again = await first.post(f"/keys/{rotated['id']}/rotate", json={})
        assert again.status_code == 201
        async with caller(door, rotated["key"]) as new:
            guard_of(door).changed(rotated["id"])  # as others tell it
            assert (await new.get("/tasks")).status_code == 401


async def test_a_key_is_replaced_once(door: Door) -> None:
    """A second time, as after a lost answer, says by which; one whose time is over gives none, either."""
    await made(door, expires_in_s=3600)
    async with caller(door, BOOTSTRAP) as first:
        [old] = (await first.get("/keys")).json()["items"]
        new = (await first.post(f"/keys/{old['id']}/rotate", json={"grace_s": 60})).json()
        assert new["expires_at"] == old["expires_at"]
        again = await first.post(f"/keys/{old['id']}/rotate", json={"grace_s": 600})
        assert (again.status_code, again.json()["type"]) == (409, "/problems/not-rotatable")
        assert new["id"] in again.json()["detail"]
        listed = {one["id"]: one for one in (await first.get("/keys")).json()["items"]}
        assert listed.keys() == {old["id"], new["id"]}
        assert (listed[old["id"]]["replaced_by"], new["replaced_by"]) == (new["id"], None)

        await door.gateway.keys.keep_key(ended := kept(new_key(), expires_ms=1))
        over = await first.post(f"/keys/{ended.id}/rotate", json={})
        assert (over.status_code, over.json()["type"]) == (409, "/problems/not-rotatable")


async def test_who_looks_after_a_key_does_not_use_it(door: Door) -> None:
    await made(door)
    async with caller(door, BOOTSTRAP) as first:
        [old] = (await first.get("/keys")).json()["items"]
        assert (await first.post(f"/keys/{old['id']}/rotate", json={"grace_s": 60})).status_code == 201
        assert [one["last_used_at"] for one in (await first.get("/keys")).json()["items"]] == [None, None]


async def test_a_key_ends_at_its_time(door: Door) -> None:
    key = await made(door, expires_in_s=1)
    async with caller(door, key) as http:

        async def status() -> int:
            return (await http.get("/tasks")).status_code

        await eventually(status, lambda code: code == 401, within_s=60)


async def test_a_revoked_key_ends_everywhere_and_so_do_its_streams(
    listening: Door, gateway_of: Callable[..., Door]
) -> None:
    """Of what is remembered for 30 s nothing is believed any more: another gateway was told."""
    revoker = gateway_of(api_key=BOOTSTRAP)
    key = await made(listening)
    async with caller(listening, key) as http, caller(revoker, BOOTSTRAP) as first:
        task = await submit(http)
        streams = [
            asyncio.create_task(http.get(f"/tasks/{task['id']}/events")),
            asyncio.create_task(http.get(f"/events?task={task['id']}")),
        ]
        grant = await guard_of(listening).grant(f"Bearer {key}".encode())

        async def open_streams() -> int:
            return sum(stream.on_end is not None for stream in grant.streams)

        async def subscribed() -> Any:
            return listening.gateway.hub._pubsub

        await eventually(open_streams, lambda count: count == 2, within_s=30)
        await eventually(subscribed, lambda pubsub: pubsub is not None, within_s=30)
        [listed] = (await first.get("/keys")).json()["items"]
        assert (await first.delete(f"/keys/{listed['id']}")).status_code == 204

        async with asyncio.timeout(60):
            answers = await asyncio.gather(*streams)
        assert [each.status_code for each in answers] == [200, 200]
        assert (await http.get(f"/tasks/{task['id']}")).status_code == 401
        assert (await http.post("/tasks", json={})).status_code == 401


@pytest.mark.parametrize("prefer", [False, True])
async def test_a_revoked_key_is_not_answered_any_more_by_what_waits(
    listening: Door, gateway_of: Callable[..., Door], *, prefer: bool
) -> None:
    """Reads are refused at once; of a submission, which is accepted, no more is shown than it said itself."""
    revoker = gateway_of(api_key=BOOTSTRAP)
    async with caller(listening, await made(listening)) as http, caller(revoker, BOOTSTRAP) as first:
        guard = guard_of(listening)
        if prefer:
            body = {"type": "echo", "payload": {"text": "hello"}}
            waiting = asyncio.create_task(http.post("/tasks", json=body, headers={"Prefer": "wait=60"}))
        else:
            task = await submit(http)
            waiting = asyncio.create_task(http.get(f"/tasks/{task['id']}?wait=60"))

        async def waits() -> int:
            return sum(len(grant.waits) for grant in guard._grants.values())

        async def subscribed() -> Any:
            return listening.gateway.hub._pubsub

        await eventually(waits, lambda count: count == 1, within_s=30)
        await eventually(subscribed, lambda pubsub: pubsub is not None, within_s=30)
        [grant] = guard._grants.values()
        [listed] = (await first.get("/keys")).json()["items"]
        assert (await first.delete(f"/keys/{listed['id']}")).status_code == 204
        answer = await waiting
        assert answer.status_code == (202 if prefer else 401)
        assert "preference-applied" not in answer.headers
        assert not grant.waits


async def test_what_waits_by_a_key_of_whose_end_nothing_was_heard_is_refused_too(
    door: Door, monkeypatch: pytest.MonkeyPatch, redis_client: Redis
) -> None:
    monkeypatch.setattr(access, "LOOK_S", 0.05)
    monkeypatch.setattr(access, "KNOWN_S", 0.5)
    guard = guard_of(door)
    async with caller(door, await made(door)) as http:
        task = await submit(http)
        waiting = asyncio.create_task(http.get(f"/tasks/{task['id']}?wait=60"))

        async def waits() -> int:
            return sum(len(grant.waits) for grant in guard._grants.values())

        await eventually(waits, lambda count: count == 1, within_s=30)
        rounds = asyncio.create_task(guard.run())
        await redis_client.delete("tg:{0}:apikeys")
        assert (await waiting).status_code == 401
        rounds.cancel()
        await asyncio.gather(rounds, return_exceptions=True)


async def test_a_tenant_that_is_named_closes_nothing_that_is_public(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    """A proxy that names it for every request names it for its probes, too."""
    door = gateway_of(api_key=BOOTSTRAP, tenant_header="X-Tenant")
    async with client_of(door) as nobody, caller(door, await made(door, tenant="a")) as known:
        assert (await known.get("/tasks")).status_code == 200
        for http in (nobody, known):
            for route in PUBLIC:
                for tenant in ("acme", "no:name"):
                    http.headers["X-Tenant"] = tenant
                    assert (await ask(http, route)).status_code in (200, 503), (route, tenant)


async def test_a_key_is_looked_up_once_and_forgotten_when_something_may_have_been_missed(
    door: Door, redis_client: Redis
) -> None:
    async with caller(door, await made(door)) as http:
        assert (await http.get("/tasks")).status_code == 200
        await redis_client.delete("tg:{0}:apikeys")
        assert (await http.get("/tasks")).status_code == 200
        guard_of(door).lost_track()
        assert (await http.get("/tasks")).status_code == 401


async def test_a_key_that_is_read_while_it_is_revoked_is_read_again(
    door: Door, monkeypatch: pytest.MonkeyPatch, redis_client: Redis
) -> None:
    """The answer to the look-up is older than the word that the key is gone."""
    key = await made(door)
    guard = guard_of(door)
    look_up = guard._look_up

    async def revoked_meanwhile(key_id: str) -> Any:
        found = await look_up(key_id)
        if await redis_client.delete("tg:{0}:apikeys"):
            guard.changed(key_id)
        return found

    monkeypatch.setattr(guard, "_look_up", revoked_meanwhile)
    async with caller(door, key) as http:
        assert (await http.get("/tasks")).status_code == 401


async def test_a_key_has_a_rate_of_its_own(door: Door) -> None:
    """And who obeys its Retry-After gets in; another key of the tenant is not slowed."""
    slow, quick = await made(door, rate_per_s=0.01, burst=3), await made(door)
    async with caller(door, slow) as http, caller(door, quick) as others:
        answers = [await http.post("/tasks", json={"type": "any", "payload": None}) for _ in range(4)]
        assert [each.status_code for each in answers] == [202, 202, 202, 429]
        refused = answers[-1]
        assert (refused.json()["type"], refused.json()["limit"]) == ("/problems/rate-limited", "rate-key")
        assert "the API key submits faster" in refused.json()["detail"]
        assert '"rate-key";q=' in refused.headers["RateLimit-Policy"]
        assert '"rate-key";r=0;t=' in refused.headers["RateLimit"]
        assert 1 <= int(refused.headers["retry-after"]) <= 121
        assert (await others.post("/tasks", json={"type": "any", "payload": None})).status_code == 202


async def test_a_key_has_so_many_streams_at_once(door: Door, worker: Worker) -> None:
    async with caller(door, await made(door, streams=1)) as http:
        task = await submit(http)
        first = asyncio.create_task(http.get(f"/tasks/{task['id']}/events"))

        async def second() -> httpx.Response:
            async with asyncio.timeout(60):
                return await http.get(f"/events?task={task['id']}")

        guard = guard_of(door)

        async def streams() -> int:
            return sum(len(grant.streams) for grant in guard._grants.values())

        await eventually(streams, lambda count: count == 1, within_s=30)
        refused = await second()
        assert (refused.status_code, refused.json()["limit"]) == (429, "streams")
        assert int(refused.headers["retry-after"]) > 0
        await http.post(f"/tasks/{task['id']}/cancel")
        door.gateway.hub.drain()
        async with asyncio.timeout(60):
            assert (await first).status_code == 200
        assert await streams() == 0


async def token_for(http: Http, task_id: str) -> str:
    answer = await http.post(f"/tasks/{task_id}/stream-tokens")
    assert answer.status_code == 201, answer.text
    token: str = answer.json()["token"]
    return token


@pytest.fixture
async def ended(door: Door) -> tuple[Http, str, str]:
    """A client, its key, and a task of its that has ended."""
    key = await made(door, tenant="t")
    http = caller(door, key)
    task_id = (await submit(http))["id"]
    await http.post(f"/tasks/{task_id}/cancel")
    return http, key, task_id


async def test_a_stream_token_opens_that_tasks_events_and_nothing_else(
    ended: tuple[Http, str, str], door: Door, gateway_of: Callable[..., Door]
) -> None:
    http, _, task_id = ended
    token = await token_for(http, task_id)
    other = (await submit(http))["id"]
    for each in (door, gateway_of(api_key=BOOTSTRAP)):  # gateways share the secret
        async with client_of(each) as page:
            stream = await page.get(f"/tasks/{task_id}/events", params={"token": token})
            assert stream.status_code == 200
            assert "event: end" in stream.text
            many = await page.get("/events", params={"task": task_id, "token": token})
            assert "event: end" in many.text
            for path in (f"/tasks/{task_id}", f"/tasks/{task_id}/result", "/tasks", f"/tasks/{other}/events"):
                assert (await page.get(path, params={"token": token})).status_code == 401, path
            asked = [("task", task_id), ("task", other), ("token", token)]
            assert (await page.get("/events", params=asked)).status_code == 401
            assert (await page.get("/events", params=[*asked, ("token", token)])).status_code == 401


async def test_a_stream_token_that_was_changed_or_is_old_opens_nothing(
    ended: tuple[Http, str, str], door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    http, _, task_id = ended
    token = await token_for(http, task_id)
    mac, ends, key_id, tenant = token.split(".", 3)
    later = f"{int(ends, 16) + 3600:x}"
    monkeypatch.setattr(stream_tokens, "LIFE_S", -1)
    wrong = [
        await token_for(http, task_id), "", ".", "...", "x.y.z.t", token[1:], f"{mac}.{later}.{key_id}.{tenant}",
        f"{mac}.{ends}..{tenant}", f"{mac}.{ends}.{key_id}.other", f"é.{ends}.{key_id}.{tenant}",
    ]  # fmt: skip
    async with client_of(door) as page:
        for each in wrong:
            answer = await page.get(f"/tasks/{task_id}/events", params={"token": each})
            assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthorized"), each


async def test_a_stream_token_ends_soon_whoever_has_signed_it(
    ended: tuple[Http, str, str], door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who could read the secret, once; and what signs today's tokens signs none of tomorrow."""
    _, _, task_id = ended
    tokens = door.gateway.stream_tokens
    signed = {}
    for life_s, opens in ((86_400, False), (1_200, False), (110, True)):
        monkeypatch.setattr(stream_tokens, "LIFE_S", life_s)
        token, signed[life_s] = await tokens.make(task_id, "", "t")
        assert (await tokens.check(task_id, token) is not None) == opens
    assert await tokens._secret(signed[86_400]) != await tokens._secret(signed[110])


async def test_a_stream_token_ends_with_its_key(ended: tuple[Http, str, str], door: Door) -> None:
    http, _, task_id = ended
    token = await token_for(http, task_id)
    async with caller(door, BOOTSTRAP) as first:
        [listed] = (await first.get("/keys")).json()["items"]
        await first.delete(f"/keys/{listed['id']}")
    guard = guard_of(door)
    guard.changed(listed["id"])
    async with client_of(door) as page:
        assert (await page.get(f"/tasks/{task_id}/events", params={"token": token})).status_code == 401


async def test_no_token_and_no_key_is_ever_logged(gateway_of: Callable[..., Door], worker: Worker) -> None:
    door = gateway_of(api_key=BOOTSTRAP, access_log=True)
    with structlog.testing.capture_logs() as lines:
        key = await made(door)
        async with caller(door, key) as http, client_of(door) as page:
            task_id = (await submit(http))["id"]
            await http.post(f"/tasks/{task_id}/cancel")
            token = await token_for(http, task_id)
            for path in (f"/tasks/{task_id}/events", "/events", "/nope/events"):
                answer = await page.get(path, params={"task": task_id, "token": token})
                assert answer.headers["referrer-policy"] == "no-referrer"
            await page.get(f"/tasks/{task_id}/events", params={"token": f"{token}x"})
            await page.get("/tasks", headers=bearer(f"{key}x"))
    assert lines
    assert [secret for secret in (key, token, BOOTSTRAP) if secret in str(lines)] == []


async def test_without_a_key_configured_all_may_all_and_keys_mean_nothing(
    gateway_of: Callable[..., Door], worker: Worker
) -> None:
    door = gateway_of(tenant_header="X-Tenant")
    async with client_of(door) as http:
        for route in ("GET /keys", "POST /keys", "DELETE /keys/{key_id}", "POST /keys/{key_id}/rotate"):
            answer = await ask(http, route)
            assert (answer.status_code, answer.json()["type"]) == (409, "/problems/keys-off"), route
        assert (await http.get("/tasks", headers=bearer("anything"))).status_code == 200
        task = (await http.post("/tasks", json={"type": "any", "payload": 1}, headers={"X-Tenant": "t"})).json()
        await http.post(f"/tasks/{task['id']}/cancel", headers={"X-Tenant": "t"})
        made_for = await http.post(f"/tasks/{task['id']}/stream-tokens", headers={"X-Tenant": "t"})
        stream = await http.get(f"/tasks/{task['id']}/events", params={"token": made_for.json()["token"]})
        assert "event: end" in stream.text


async def test_openapi_tells_of_keys_on_every_operation(door: Door) -> None:
    async with client_of(door) as http:
        found = (await http.get("/openapi.json")).json()
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            scope = ROUTES[f"{method.upper()} {path}"]
            assert {"401", "403"} <= operation["responses"].keys() or scope is None
            assert operation["security"][:2] == ([] if scope is None else [{}, {"key": [scope]}])


async def test_while_redis_is_away_nobody_is_let_in_unseen(
    door: Door, monkeypatch: pytest.MonkeyPatch, live_store: Store
) -> None:
    """503, not 401: the key may well be good. What was looked up a moment ago, and TASKGATE_API_KEY, go on."""
    known, unknown = await made(door), await made(door)
    async with caller(door, known) as http, caller(door, unknown) as stranger, caller(door, BOOTSTRAP) as first:
        assert (await http.get("/tasks")).status_code == 200

        async def away(*_: object) -> Any:
            raise StoreUnavailable("away")

        monkeypatch.setattr(door.gateway.keys, "_look_up_keys", away)
        assert (await http.get("/tasks")).status_code == 200
        assert (await first.get("/tasks")).status_code == 200
        assert (await stranger.get("/tasks")).status_code == 503
