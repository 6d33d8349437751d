"""`taskgate keys`: what it sends, and that a new key stands alone on standard output."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Cli, Receiver, answer, problem
from tests.cli.drivers import CLIENTS

ID = "0f3a5b7c9d1e2f40"
NEW: dict[str, Any] = {
    "id": ID,
    "name": "shop\x1b[31m",
    "hint": "abcd",
    "tenant": "shop",
    "scopes": ["tasks:read", "tasks:write"],
    "created_at": "2026-11-30T08:00:00Z",
    "expires_at": None,
    "last_used_at": None,
    "key": "tg_live_secret",
}
LISTED = {name: value for name, value in NEW.items() if name != "key"}
ENV = {"TASKGATE_API_KEY": "first"}


def test_a_new_key_stands_alone_on_standard_output(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(201, NEW))
    options = ["--tenant", "shop", "--rate", "50", "--burst", "9", "--streams", "3", "--expires-in", "60"]
    scopes = ["--scope", "tasks:read", "--scope", "tasks:write"]
    done = cli("keys", "create", "shop", *scopes, *options, "--url", receiver.url, env=ENV)

    assert (done.exit_code, done.stdout) == (0, "tg_live_secret\n")
    assert ID in done.stderr
    [request] = receiver.requests
    assert (request.method, request.path) == ("POST", "/keys")
    assert request.headers["authorization"] == "Bearer first"
    assert json.loads(request.body) == {
        "name": "shop",
        "scopes": ["tasks:read", "tasks:write"],
        "tenant": "shop",
        "rate_per_s": 50,
        "burst": 9,
        "streams": 3,
        "expires_in_s": 60,
    }


def test_keys_are_listed(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [answer(200, {"items": [LISTED]}), answer(200, {"items": [LISTED]})]
    done = cli("keys", "list", "--url", receiver.url)
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    [_, line] = done.stdout.splitlines()
    assert line.split()[0] == ID
    assert line.split()[-2:] == ["never", "never"]
    assert json.loads(cli("keys", "list", "--json", "--url", receiver.url).stdout) == [LISTED]


def test_a_key_is_replaced_with_its_grace(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(201, NEW))
    done = cli("keys", "rotate", ID, "--grace", "3600", "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (0, "tg_live_secret\n")
    [request] = receiver.requests
    assert (request.path, json.loads(request.body)) == (f"/keys/{ID}/rotate", {"grace_s": 3600})


def test_a_key_is_revoked(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(204))
    assert cli("keys", "revoke", ID, "--url", receiver.url).stdout == "revoked\n"
    assert (receiver.requests[0].method, receiver.requests[0].path) == ("DELETE", f"/keys/{ID}")


@pytest.mark.parametrize("key_id", ["", "../tasks", "0f3a5b7c9d1e2f4", "tg_live_secret"])
def test_what_is_no_id_is_not_sent(cli: Cli, receiver: Receiver, key_id: str) -> None:
    """It may be the key itself, which is nobody's path."""
    done = cli("keys", "revoke", key_id, "--url", receiver.url)
    assert done.exit_code == 6
    assert receiver.requests == []
    assert "secret" not in done.output


def test_a_key_that_may_not_is_told_so(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(problem(403, "forbidden", "The key lacks the scope keys:admin."))
    done = cli("keys", "list", "--url", receiver.url)
    assert done.exit_code == 7
    assert "keys:admin" in done.stderr


@pytest.mark.parametrize("driver", CLIENTS)
def test_both_clients_have_all_of_it(receiver: Receiver, driver: str) -> None:
    token = {"token": "t", "expires_at": "2026-11-30T08:00:00Z"}
    task = "0193c0de-7a3e-7b1c-9d2f-0123456789ab"
    receiver.answers += [
        answer(200, {"items": [LISTED]}),
        answer(201, NEW),
        answer(201, NEW),
        answer(204),
        answer(201, token),
    ]
    with CLIENTS[driver](receiver.url, patience_s=0) as client:
        assert client.keys() == [LISTED]
        assert client.create_key("n", ["tasks:read"]) == NEW
        assert client.rotate_key(ID, grace_s=5) == NEW
        assert client.revoke_key(ID) is None
        assert client.stream_token(task) == token
    sent = [(each.method, each.path) for each in receiver.requests]
    assert sent[1:] == [
        ("POST", "/keys"),
        ("POST", f"/keys/{ID}/rotate"),
        ("DELETE", f"/keys/{ID}"),
        ("POST", f"/tasks/{task}/stream-tokens"),
    ]
