"""dead-letters, dead-letter, redrive and purge against a real receiver."""

import json
import re
from typing import Any

import pytest

from taskgate.client import Client, Unreachable
from tests.cli.conftest import TASK_ID, Cli, Receiver, answer, hang_up, problem
from tests.cli.drivers import CLIENTS
from tests.cli.test_commands import FAILED, OTHER_ID, TASK

ERROR = {"kind": "exception", "message": "boom", "traceback": "line one\n  line two", "stack": "in loop"}
ATTEMPT: dict[str, Any] = {
    "attempt": 1,
    "started_at": "2026-01-31T12:00:00Z",
    "finished_at": "2026-01-31T12:00:01.250000Z",
    "worker": "host-1-a",
    "error": ERROR,
    "rss_peak_bytes": 50 << 20,
    "redriven_at": None,
}


def redriven(redriven: int = 0, refused: int = 0, skipped: int = 0, cursor: str | None = None, **more: Any) -> Any:
    counts = {"redriven": redriven, "refused": refused, "skipped": skipped, "next_cursor": cursor, "remaining": 5}
    return answer(200, counts | more)


def bodies(receiver: Receiver) -> list[Any]:
    return [json.loads(request.body) for request in receiver.requests]


def test_the_list_shows_why_each_failed_page_by_page(cli: Cli, receiver: Receiver) -> None:
    page = {"items": [FAILED], "next_cursor": "c"}
    receiver.answers += [answer(200, page), answer(200, page | {"next_cursor": None}), answer(200, page)]
    filters = ["--queue", "mail", "--type", "t", "--kind", "crash", "--after", "A", "--before", "B"]
    shown = cli("dead-letters", *filters, "--limit", "5", "--url", receiver.url)
    raw = cli("dead-letters", "--json", "--limit", "1", "--url", receiver.url)

    first = "/dead-letters?queue=mail&type=t&kind=crash&after=A&before=B"
    assert [request.path for request in receiver.requests] == [
        f"{first}&limit=5", f"{first}&limit=4&cursor=c", "/dead-letters?limit=1",
    ]  # fmt: skip
    assert shown.stdout.splitlines()[1].split() == [TASK_ID, "demo.echo", "3/3", "-", "exception:", "boom"]
    assert json.loads(raw.stdout) == [FAILED]


def test_one_is_drawn_with_its_attempts_and_redrives(cli: Cli, receiver: Receiver) -> None:
    again = ATTEMPT | {"redriven_at": "2026-02-01T00:00:00Z", "error": {"kind": "lost", "message": "gone \x1b[2J"}}
    letter = FAILED | {"attempts": [ATTEMPT, again | {"rss_peak_bytes": None}], "attempts_lost": 3}
    receiver.answers += [answer(200, letter)] * 2
    shown = cli("dead-letter", TASK_ID, "--url", receiver.url).stdout
    raw = cli("dead-letter", TASK_ID, "--json", "--url", receiver.url)

    assert receiver.requests[0].path == f"/dead-letters/{TASK_ID}"
    wanted = [
        TASK_ID,
        "3 older attempts are no longer kept",
        "attempt 1 · 2026-01-31T12:00:00Z · 1.250 s · on host-1-a · peak memory 50 MiB",
        "  exception: boom",
        "    line one",
        "      line two",
        "    in loop",
        "── redriven 2026-02-01T00:00:00Z",
        "  lost: gone",
    ]
    places = [shown.index(text) for text in wanted]
    assert places == sorted(places), "in this order"
    assert "\x1b" not in shown
    assert json.loads(raw.stdout) == letter


def test_one_without_attempts_says_why_it_failed(cli: Cli, receiver: Receiver) -> None:
    overflow = {"kind": "overflow", "message": "the queue was full"}
    receiver.answers.append(answer(200, FAILED | {"error": overflow, "attempts": [], "attempts_lost": 0}))
    shown = cli("dead-letter", TASK_ID, "--url", receiver.url).stdout
    assert "no attempt: overflow: the queue was full" in shown


def test_one_is_redriven_as_it_was(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(202, TASK))
    done = cli("redrive", TASK_ID, "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (0, "queued\n")
    assert receiver.requests[0].path == f"/tasks/{TASK_ID}/redrive"


def test_several_are_redriven_in_one_request(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(redriven(1, skipped=1))
    done = cli("redrive", TASK_ID, OTHER_ID, "--rate", "5", "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (0, "1 redriven, 1 skipped\n")
    assert bodies(receiver) == [{"ids": [TASK_ID, OTHER_ID], "rate_per_s": 5.0}]


def test_more_than_a_request_may_name_keep_to_one_rate(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [redriven(2, skipped=998, next_start_at="T"), redriven(2, next_start_at="U")]
    done = cli("redrive", *[TASK_ID] * 1000, OTHER_ID, OTHER_ID, "--rate", "0.2", "--url", receiver.url)
    assert done.stdout == "4 redriven, 998 skipped\n"
    assert [(len(body["ids"]), body.get("start_at")) for body in bodies(receiver)] == [(1000, None), (2, "T")]


def test_those_that_are_named_wait_for_room_too(cli: Cli, receiver: Receiver) -> None:
    full: dict[str, Any] = {"limit": "queue-tasks", "retry_after_s": 0.05, "refused_ids": [OTHER_ID]}
    receiver.answers += [redriven(1, 1, next_start_at="T", **full), redriven(1)]
    done = cli("redrive", TASK_ID, OTHER_ID, "--rate", "5", "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (0, "2 redriven\n")
    assert "no room (queue-tasks); trying again in 0.05 s" in done.stderr
    assert bodies(receiver)[1] == {"ids": [OTHER_ID], "rate_per_s": 5.0, "start_at": "T"}


def test_those_that_are_named_and_find_no_room_for_long_are_told(cli: Cli, receiver: Receiver) -> None:
    full: dict[str, Any] = {"limit": "queue-tasks", "retry_after_s": 30, "refused_ids": [OTHER_ID]}
    receiver.answers.append(redriven(1, 1, **full))
    done = cli("redrive", TASK_ID, OTHER_ID, "--retry-for", "3", "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (7, "1 redriven, 1 refused\n")
    assert f"refused: {OTHER_ID}" in done.stderr


def test_one_alone_waits_for_room_too(cli: Cli, receiver: Receiver) -> None:
    full = problem(429, "queue-full", Retry_After="1")
    receiver.answers += [full, answer(202, TASK), full]
    done = cli("redrive", TASK_ID, "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (0, "queued\n")
    assert "trying again in" in done.stderr
    assert cli("redrive", TASK_ID, "--retry-for", "0", "--url", receiver.url).exit_code == 7


def test_while_others_are_still_to_be_tried_there_is_no_pause(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [redriven(0, 1000, cursor="one", limit="queue-tasks"), redriven(9)]
    done = cli("redrive", "--all", "--retry-for", "0", "--url", receiver.url)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "9 redriven\n", "")


def test_all_that_fit_are_redriven_over_as_many_requests_as_that_takes(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [redriven(1000, cursor="one"), redriven(0, cursor="two"), redriven(7)]
    done = cli("redrive", "--kind", "timeout", "--rate", "10", "--json", "--url", receiver.url)
    assert json.loads(done.stdout) == {"redriven": 1007, "refused": 0, "skipped": 0}
    body = {"filter": {"kind": "timeout"}, "rate_per_s": 10.0}
    assert bodies(receiver) == [body, body | {"cursor": "one"}, body | {"cursor": "two"}]


def test_no_more_than_asked_for_are_redriven(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [redriven(1000, cursor="one"), redriven(500, cursor="two")]
    done = cli("redrive", "--all", "--limit", "1500", "--url", receiver.url)
    assert done.stdout == "1500 redriven\n"
    assert bodies(receiver) == [{"filter": {}, "limit": 1000}, {"filter": {}, "limit": 500, "cursor": "one"}]


def test_where_there_is_no_room_the_rest_waits_for_it(cli: Cli, receiver: Receiver) -> None:
    full: dict[str, Any] = {"limit": "queue-tasks", "retry_after_s": 1}
    receiver.answers += [redriven(2, 3, cursor="one", **full), redriven(0, 3, cursor="one", **full), redriven(3)]
    done = cli("redrive", "--all", "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (0, "5 redriven\n")
    assert "no room (queue-tasks); trying again in 1 s" in done.stderr


@pytest.mark.parametrize("ids", [[TASK_ID], [TASK_ID, OTHER_ID]])
def test_a_limit_goes_with_filters_alone(cli: Cli, receiver: Receiver, ids: list[str]) -> None:
    done = cli("redrive", *ids, "--limit", "1", "--url", receiver.url)
    assert done.exit_code == 2
    assert "--limit" in done.stderr
    assert receiver.requests == []


def test_without_room_for_long_it_gives_up_and_says_what_is_left(cli: Cli, receiver: Receiver) -> None:
    full: dict[str, Any] = {"limit": "queue-bytes", "retry_after_s": 30}
    receiver.answers += [redriven(2, 3, cursor="one", **full), redriven(0, 3, cursor="one", **full)]
    done = cli("redrive", "--all", "--retry-for", "3", "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (7, "2 redriven, 5 refused\n")


def test_a_lost_answer_is_asked_for_again_under_the_same_request_id(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [hang_up, problem(503, "starting"), redriven(4)]
    done = cli("redrive", "--all", "--url", receiver.url)
    assert done.stdout == "4 redriven\n"
    sent = {request.headers["x-request-id"] for request in receiver.requests}
    assert len(receiver.requests) == 3
    assert len(sent) == 1


SOME: list[tuple[str, dict[str, Any]]] = [
    ("redrive_letters", {"everything": True, "limit": 1}),
    ("redrive_letters", {"kind": "crash", "rate_per_s": 5.0}),
    ("purge_letters", {"kind": "crash", "limit": 1}),
]


@pytest.mark.parametrize("driver", CLIENTS)
@pytest.mark.parametrize(("call", "options"), SOME)
def test_so_many_or_at_a_rate_is_asked_for_once_since_a_repeat_would_take_others(
    receiver: Receiver, driver: str, call: str, options: dict[str, Any]
) -> None:
    receiver.answers += [hang_up, redriven(1)]
    client: Any = CLIENTS[driver](receiver.url, patience_s=5)
    with client, pytest.raises(Unreachable):
        getattr(client, call)(**options)
    assert len(receiver.requests) == 1


NOT_SAID: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("redrive_letters", [], {}),
    ("redrive_letters", [], {"limit": 1}),
    ("redrive_letters", [], {"everything": True, "kind": "x"}),
    ("redrive_letters", [[TASK_ID]], {"kind": "x"}),
    ("redrive_letters", [[TASK_ID]], {"everything": True}),
    ("redrive_letters", [[TASK_ID]], {"limit": 1}),
    ("redrive_letters", [[TASK_ID]], {"cursor": "c"}),
    ("redrive_letters", [[TASK_ID]], {"start_at": "T"}),
    ("redrive_letters", [], {"kind": "x", "rate_per_s": 1.0, "start_at": "T"}),
    ("purge_letters", [], {}),
    ("purge_letters", [], {"everything": True, "kind": "x"}),
]


@pytest.mark.parametrize("driver", CLIENTS)
def test_a_call_that_names_nothing_or_in_two_ways_is_not_sent(receiver: Receiver, driver: str) -> None:
    client: Any = CLIENTS[driver](receiver.url, patience_s=0)
    with client:
        for call, args, options in NOT_SAID:
            with pytest.raises(ValueError, match=r"say which|go with|goes with"):
                getattr(client, call)(*args, **options)
    assert receiver.requests == []


def test_those_that_are_named_are_asked_for_again_also_at_a_rate(receiver: Receiver) -> None:
    receiver.answers += [hang_up, redriven(1)]
    with Client(receiver.url, patience_s=5) as client:
        assert client.redrive_letters([TASK_ID], rate_per_s=5.0).redriven == 1
    assert len({request.headers["x-request-id"] for request in receiver.requests}) == 1


def test_purge_deletes_until_nothing_is_left(cli: Cli, receiver: Receiver) -> None:
    receiver.answers += [answer(200, {"deleted": 1000, "next_cursor": "c"}), hang_up, answer(200, {"deleted": 5})]
    done = cli("purge", "--type", "t", "--yes", "--url", receiver.url)
    assert (done.exit_code, done.stdout) == (0, "1005 deleted\n")
    assert [(request.method, request.path) for request in receiver.requests] == [
        ("DELETE", "/dead-letters?type=t"), *[("DELETE", "/dead-letters?type=t&cursor=c")] * 2,
    ]  # fmt: skip


def test_purge_of_all_says_so_to_the_service(cli: Cli, receiver: Receiver) -> None:
    receiver.answers.append(answer(200, {"deleted": 0}))
    done = cli("purge", "--all", "--yes", "--json", "--url", receiver.url)
    assert json.loads(done.stdout) == {"deleted": 0}
    assert receiver.requests[0].path == "/dead-letters?all=true"


def test_purge_asks_nobody_where_there_is_no_terminal_and_deletes_nothing(cli: Cli, receiver: Receiver) -> None:
    done = cli("purge", "--all", "--url", receiver.url)
    assert done.exit_code == 2
    assert "--yes" in done.stderr
    assert receiver.requests == []


@pytest.mark.parametrize(
    "args",
    [
        "redrive",
        f"redrive {TASK_ID} --all",
        f"redrive {TASK_ID} --kind x",
        "redrive --all --queue q",
        "purge --yes",
        "purge --all --queue q --yes",
    ],
)
def test_what_is_meant_must_be_said(cli: Cli, receiver: Receiver, args: str) -> None:
    done = cli(*args.split(), "--url", receiver.url)
    assert done.exit_code == 2
    assert re.search("say which", done.stderr)
    assert receiver.requests == []
