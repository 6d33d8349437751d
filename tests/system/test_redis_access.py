"""A service on a Redis that trusts nobody: TLS with certificates of both, a user who may no more than documented."""

import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from taskgate.contract.acl import RULES
from tests.conftest import Server, eventually
from tests.processes import free_port
from tests.system.rig import Rig
from tests.tls import certificates

__all__ = ["certificates"]

USER = "taskgate"
PASSWORD = "s3cret-pass"
FIRST_KEY = "the-first-key"


def admin(server: Server, *command: str) -> Any:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        return client.execute_command(*command)


@pytest.fixture
def server_name(request: pytest.FixtureRequest) -> str:
    """As the test's parameter says."""
    return str(request.getfixturevalue("kind"))


@contextlib.asynccontextmanager
async def on_redis(server: Server, folder: Path, url: str) -> AsyncIterator[Rig]:
    """The service with its URL from a file, and nobody but its user let in."""
    admin(server, "ACL", "SETUSER", USER, "on", f">{PASSWORD}", *RULES)
    (folder / "url").write_text(f"{url}\n")
    rig = Rig(server, folder)
    rig.settings["TASKGATE_REDIS_URL"] = ""
    rig.settings["TASKGATE_REDIS_URL_FILE"] = str(folder / "url")
    rig.settings["TASKGATE_API_KEY"] = FIRST_KEY
    rig.http.headers["Authorization"] = f"Bearer {FIRST_KEY}"
    try:
        await rig.worker()
        await rig.gateway()
        yield rig
    finally:
        await rig.close()


async def everything(rig: Rig) -> None:
    """Every way that a task can go, and every way to look at it."""
    done = await rig.submit("progress", {"steps": 3, "ms": 10}, unique_key="u", concurrency_key="c")
    assert (await rig.ended(done))["status"] == "succeeded"
    dead = await rig.submit("raises", {})
    assert (await rig.ended(dead))["status"] == "failed"
    printed = await rig.submit("tells", {"n": 2})
    await rig.ended(printed)
    long = await rig.submit("wait", {"ms": 600_000})
    await rig.running(long)
    later = await rig.submit("cpu", {"ms": 1}, delay_s=600, deadline_s=1200)
    asked = [f"/tasks/{done}{rest}" for rest in ("", "/result", "/logs", "/events")]
    asked += [f"/events?task={done}&task={dead}", "/tasks", "/dead-letters"]
    asked += [f"/dead-letters/{dead}", "/queues", "/workers", "/task-types", "/readyz"]
    for path in asked:
        answer = await rig.http.get(path)
        assert answer.status_code == 200, (path, answer.text)

    async def stack() -> int:
        return (await rig.http.get(f"/tasks/{long}/stack")).status_code

    await eventually(stack, lambda status: status == 200, within_s=60)  # a busy supervisor may answer too late
    for key in ("k", "k"):
        again = await rig.http.post(
            "/tasks", json={"type": "cpu", "payload": {"ms": 1}}, headers={"Idempotency-Key": key}
        )
        assert again.status_code == 202
    for task_id in (long, later):
        assert (await rig.http.post(f"/tasks/{task_id}/cancel")).status_code in (200, 202)
        assert (await rig.ended(task_id))["status"] == "canceled"
    assert (await rig.http.post(f"/tasks/{dead}/redrive")).status_code == 202
    await rig.ended(dead)
    assert (await rig.http.post("/dead-letters/redrive", json={"filter": {}})).status_code == 200
    await rig.ended(dead)
    assert (await rig.http.delete(f"/tasks/{done}")).status_code == 204
    assert (await rig.http.delete("/dead-letters?all=true")).status_code == 200


async def every_use_of_keys(rig: Rig) -> None:
    """Make, list, use (with a rate), sign for a browser, replace, revoke."""
    scopes = ["tasks:read", "tasks:write", "tasks:cancel"]
    answer = await rig.http.post("/keys", json={"name": "n", "scopes": scopes, "rate_per_s": 100})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    mine = {"Authorization": f"Bearer {made['key']}"}
    sent = await rig.http.post("/tasks", json={"type": "wait", "payload": {"ms": 600_000}}, headers=mine)
    assert sent.status_code == 202, sent.text
    task_id = sent.json()["id"]
    assert (await rig.http.get("/tasks", headers=mine)).status_code == 200
    signed = await rig.http.post(f"/tasks/{task_id}/stream-tokens", headers=mine)
    assert signed.status_code == 201, signed.text
    canceled = await rig.http.post(f"/tasks/{task_id}/cancel", headers=mine)
    assert canceled.status_code in (200, 202), canceled.text
    async with httpx.AsyncClient(base_url=rig.url, trust_env=False, timeout=60) as page:
        followed = await page.get(f"/tasks/{task_id}/events", params={"token": signed.json()["token"]})
        assert followed.status_code == 200, followed.text
    replaced = await rig.http.post(f"/keys/{made['id']}/rotate", json={})
    assert replaced.status_code == 201, replaced.text
    assert (await rig.http.get("/keys")).status_code == 200
    new = replaced.json()
    assert (await rig.http.delete(f"/keys/{new['id']}")).status_code == 204

    async def refused() -> int:
        return (await rig.http.get("/tasks", headers={"Authorization": f"Bearer {new['key']}"})).status_code

    await eventually(refused, lambda status: status == 401, within_s=90)


async def nothing_was_refused(rig: Rig) -> None:
    assert admin(rig.server, "ACL", "LOG") == []
    for name in ("worker", "gateway"):
        log = (rig.folder / f"{name}.log").read_text().rpartition("\n")[0]  # the last line may not be whole yet
        assert PASSWORD not in log
        assert [line for line in log.splitlines() if json.loads(line)["level"] == "error"] == []


@pytest.mark.full
@pytest.mark.parametrize("kind", ["valkey", "redis-server"])
async def test_a_user_who_may_what_is_documented_runs_the_whole_service_by_unix_socket(
    kind: str, own_server: Server, tmp_path: Path
) -> None:
    path = own_server.url.removeprefix("unix://")
    async with on_redis(own_server, tmp_path, f"unix://{USER}:{PASSWORD}@{path}") as rig:
        await everything(rig)
        await every_use_of_keys(rig)
        await nothing_was_refused(rig)


@pytest.mark.parametrize("kind", ["valkey"])
async def test_that_user_may_nothing_else(kind: str, own_server: Server) -> None:
    admin(own_server, "ACL", "SETUSER", USER, "on", f">{PASSWORD}", *RULES)
    path = own_server.url.removeprefix("unix://")
    with redis.Redis.from_url(f"unix://{USER}:{PASSWORD}@{path}") as client:
        for command in (
            ("GET", "other"),
            ("SET", "other:tg:x", "1"),
            ("PUBLISH", "other", "x"),
            ("KEYS", "*"),
            ("FLUSHALL",),
            ("CONFIG", "SET", "appendonly", "no"),
            ("ACL", "LIST"),
            ("SHUTDOWN",),
            ("DEBUG", "SLEEP", "0"),
            ("MONITOR",),
            ("CLIENT", "LIST"),
            ("SCRIPT", "FLUSH"),
            ("EVAL", "return redis.call('GET', 'other')", "0"),
            ("EVAL", "return redis.call('FLUSHALL')", "0"),
        ):
            with pytest.raises(redis.ResponseError, match=r"(?i)permission|can't run this command|not allowed"):
                client.execute_command(*command)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["redis-server"])
async def test_the_whole_service_by_tls_where_both_show_a_certificate_and_the_server_comes_back(
    kind: str, own_server: Server, certificates: Path, tmp_path: Path
) -> None:
    """Its port without TLS is closed, and its users are those of a file."""
    tls, port = certificates, free_port()
    binary = shutil.which("redis-server")
    assert binary is not None, "redis-server is missing; apt-get install redis-server"
    (tmp_path / "users.acl").write_text(
        f"user default on nopass ~* &* +@all\nuser {USER} on >{PASSWORD} {' '.join(RULES)}\n"
    )
    options = [
        *("--tls-port", str(port), "--bind", "127.0.0.1", "--tls-auth-clients", "yes"),
        *("--tls-ca-cert-file", f"{tls}/ca.crt", "--tls-cert-file", f"{tls}/server.crt"),
        *("--tls-key-file", f"{tls}/server.key", "--aclfile", str(tmp_path / "users.acl")),
        *("--appendonly", "yes", "--appendfsync", "always"),
    ]
    own_server.stop()
    own_server.start(*options)
    trusted = f"ssl_ca_certs={tls}/ca.crt&ssl_certfile={tls}/client.crt&ssl_keyfile={tls}/client.key"
    async with on_redis(own_server, tmp_path, f"rediss://{USER}:{PASSWORD}@127.0.0.1:{port}/0?{trusted}") as rig:
        await everything(rig)
        await every_use_of_keys(rig)
        kept = await rig.submit("cpu", {"ms": 1}, delay_s=0.5)
        own_server.stop()
        own_server.start(*options)

        async def ended() -> object:
            with contextlib.suppress(httpx.TransportError):
                answer = await rig.http.get(f"/tasks/{kept}", headers={"Cache-Control": "no-cache"})
                return answer.json().get("status")
            return None

        await eventually(ended, lambda status: status == "succeeded", within_s=90)
        assert admin(rig.server, "ACL", "LOG") == []
        clients = admin(rig.server, "CLIENT", "LIST")
        ours = [line for line in clients.splitlines() if "name=taskgate-" in line]
        assert ours
        assert all(f"laddr=127.0.0.1:{port} " in line and f"user={USER} " in line for line in ours)
