"""`taskgate queues`: what is drawn of each queue, once or again and again."""

import io
import json
from typing import Any

import pytest

from taskgate.cli import queues
from taskgate.cli.queue_lines import lines
from taskgate.client import Queues
from tests.cli.conftest import Cli, Receiver, answer, problem
from tests.cli.drivers import CLIENTS
from tests.cli.test_commands import on_a_terminal

QUEUE: dict[str, Any] = {
    "queue": "mail",
    "waiting": 21,
    "queued": 18,
    "scheduled": 2,
    "retrying": 1,
    "running": 4,
    "dead": 3,
    "bytes": 300 << 10,
    "oldest_age_ms": 75_000,
    "drain_per_s": 12.5,
    "estimated_wait_ms": 1_700,
    "on_full": "spill",
    "limits": [
        {"limit": "queue-tasks", "max": 42, "used": 21},
        {"limit": "queue-bytes", "max": 256 << 20, "used": 300 << 10},
        {"limit": "queue-wait", "max": 120.0, "used": None},
    ],
    "tenants": [
        {"tenant": "gold", "ready": 15, "waiting": 16, "running": 4, "weight": 3.0, "share": 0.75, "concurrency": 4},
        {"tenant": "tin", "ready": 3, "waiting": 3, "running": 0, "weight": 1.0, "share": 0.25, "concurrency": None},
    ],
    "more_tenants": 1_200,
    "types": [
        {"type": "mail.send", "ready": 18, "running": 4, "concurrency": 8},
        {"type": "mail.sort", "ready": 0, "running": 0, "concurrency": 2},
        {"type": "mail.idle", "ready": 0, "running": 0, "concurrency": None},
    ],
}
TENANT: dict[str, Any] = {
    "tenant": "default",
    "waiting": 5,
    "running": 1,
    "rate_per_s": 2.5,
    "burst": 10,
    "limits": [{"limit": "tenant-tasks", "max": 10, "used": 5}],
}
ANSWER: Queues = {"items": [QUEUE], "more_queues": 9, "tenant": TENANT}
DRAWN = """\
mail: 18 queued · 2 scheduled · 1 retrying · 4 running · 3 dead · 300 KiB · oldest 1 min 15 s
  12.5/s leave · about 2 s to wait · when full: spill
  queue-tasks      ██████████░░░░░░░░░░  50 %  21 of 42
  queue-bytes      █░░░░░░░░░░░░░░░░░░░   0 %  300 KiB of 256 MiB
  queue-wait       ░░░░░░░░░░░░░░░░░░░░        ? of 2 min
  gold             ███████████████░░░░░  75 %  15 ready · 4 of 4 running · weight 3
  tin              █████░░░░░░░░░░░░░░░  25 %  3 ready · 0 running · weight 1
  and 1,200 more tenants
  type mail.send: 18 ready · 4 of 8 running
  type mail.sort: 0 ready · 0 of 2 running

and 9 queues with less
tenant default: 5 waiting · 1 running · at most 2.5 submissions/s, 10 at once
  tenant-tasks     ██████████░░░░░░░░░░  50 %  5 of 10
"""


def test_each_limit_and_share_has_its_bar(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(200, ANSWER))
    done = cli("queues", "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (0, DRAWN)
    assert receiver.requests[0].path == "/queues"


@pytest.mark.parametrize("item", [{}, {"queue": "q", "limits": [{}], "tenants": [{}], "types": [{}]}])
def test_what_the_service_leaves_out_is_no_error(item: dict[str, Any]) -> None:
    assert list(lines({"items": [item], "tenant": {}}))
    assert list(lines({}))


def test_where_the_oldest_is_not_known_for_sure_it_is_said() -> None:
    assert "oldest at least 1 min 15 s" in "".join(lines({"items": [{**QUEUE, "oldest_age_at_least": True}]}))


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_queue_that_nobody_knows_is_said_to_be_none(cli: Cli, receiver: Receiver, options: tuple[str, ...]) -> None:
    receiver.answers.append(answer(200, {**ANSWER, "items": []}))
    done = cli("queues", "nobodys\x1b[2J", *options, "--url", receiver.url)
    assert (done.exit_code, done.stderr) == (6, "taskgate: there is no queue nobodys [2J\n")
    assert bool(done.stdout) == bool(options)


def test_names_cannot_steer_the_terminal() -> None:
    drawn = "".join(lines({"items": [{**QUEUE, "queue": "a\x1b[2Jb"}]}))
    assert "\x1b" not in drawn


def test_json_is_what_the_service_sent(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(200, ANSWER))
    done = cli("queues", "mail", "--json", "--url", receiver.url)
    assert json.loads(done.stdout) == ANSWER
    assert receiver.requests[0].path == "/queues?queue=mail"


@pytest.mark.parametrize("name", CLIENTS)
def test_both_clients_ask_again_while_the_service_is_away(receiver: Receiver, name: str) -> None:
    receiver.answers += [problem(503, "service-draining", retry_after="0"), answer(200, ANSWER)]
    with CLIENTS[name](receiver.url) as client:
        assert client.queues() == ANSWER


def test_watching_goes_on_until_it_is_stopped(cli: Cli, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pictures one below the other where nothing can be drawn again."""
    monkeypatch.setattr(queues, "_EVERY_S", 0.0)
    receiver.answers += [answer(200, {**ANSWER, "more_queues": n}) for n in (1, 2)] + [problem(401, "unauthorized")]
    done = cli("queues", "--watch", "--url", receiver.url)
    assert done.exit_code == 7
    assert done.stdout.count("queue-tasks") == 2
    assert done.stdout.index("and 1 queues") < done.stdout.index("and 2 queues")


def test_where_there_are_no_such_characters_others_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown := io.BytesIO(), encoding="ascii"))
    queues.Printed().show(DRAWN)
    assert b"queue-tasks      ##########----------  50 %  21 of 42" in shown.getvalue()
    assert b"mail: 18 queued , 2 scheduled" in shown.getvalue()


def test_a_terminal_is_drawn_again_in_its_place(receiver: Receiver) -> None:
    receiver.answers += [answer(200, ANSWER), answer(200, {**ANSWER, "more_queues": 8}), problem(401, "unauthorized")]
    code, shown = on_a_terminal("queues", "--watch", "--url", receiver.url)
    assert code == 7
    assert "and 9 queues with less" in shown
    assert "and 8 queues with less" in shown
    assert "\x1b[1A" in shown, "it went up to draw over what it had drawn"
