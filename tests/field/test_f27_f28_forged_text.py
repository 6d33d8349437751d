"""F27 and F28: markup, line ends and control characters in whatever clients and handlers may say."""

import asyncio
import json

import pytest

from tests.system.rig import Rig

pytestmark = pytest.mark.full

MARKUP = "<img src=x onerror=alert(1)></script>{{7*7}}${7*7}\"'><svg onload=x>"
FORGED = 'one\r\n{"level":"error","message":"forged"}\nSet-Cookie: a=b\x1b[31mred\x1b]0;title\x07\0\u2028end'
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize("text", [MARKUP, FORGED], ids=["markup", "forged"])
async def test_f27_f28_what_a_task_says_is_data_wherever_it_is_shown(rig: Rig, text: str) -> None:
    """JSON with nosniff for everybody, HTML of ours without a byte of it; one log record of each event."""
    rig.settings["TASKGATE_HANDLERS"] = "tests.field.odd_results"
    await rig.worker()
    await rig.gateway()
    for end in ("result", "error"):
        task_id = await rig.submit("says", {"text": text, "end": end}, metadata={"tag": text})
        task = await rig.ended(task_id)
        assert task["metadata"] == {"tag": text}
        for path in ("", "/logs", "/result", "/events"):
            answer = await rig.http.get(f"/tasks/{task_id}{path}", headers=BROWSER)
            kind = answer.headers.get("content-type", "").partition(";")[0]
            assert kind in ("application/json", "application/problem+json", "text/event-stream", ""), path
            assert answer.headers["x-content-type-options"] == "nosniff"
            if "json" in kind:
                answer.json()
            else:
                data = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
                assert all(isinstance(json.loads(one), dict) for one in data)
    for path in ("/tasks", "/dead-letters", "/task-types", "/queues", "/workers"):
        answer = await rig.http.get(path, headers=BROWSER)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = await rig.http.get("/docs", headers=BROWSER)
    assert "'unsafe-inline'" not in page.headers["content-security-policy"].split("script-src")[1].split(";")[0]
    assert text not in page.text
    for log in ("gateway.log", "worker.log"):
        for line in (rig.folder / log).read_bytes().decode().split("\n")[:-1]:
            assert not set(line) & set("\r\0\x1b\x07\u2028"), line
            assert json.loads(line).get("message") != "forged"


async def test_f28_headers_cannot_forge_log_lines_or_headers(rig: Rig) -> None:
    rig.settings["TASKGATE_HANDLERS"] = "tests.field.odd_results"
    await rig.worker()
    await rig.gateway()
    for name in ("X-Request-ID", "Idempotency-Key", "User-Agent", "X-Tenant"):
        for value in ("a\x1b[31m", "a\u2028b", "é", "a" * 30_000, "a b", "<b>", "a\tb", '"'):
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            body = b'{"type":"nope","payload":1}'
            head = f"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{name}: {value}\r\n".encode()
            writer.write(head + b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
            answer = await asyncio.wait_for(reader.read(), 20)
            writer.close()
            lines, _, problem = answer.partition(b"\r\n\r\n")
            assert int(lines.split()[1]) in (400, 422), (name, value)
            assert len(problem) < 4_000
            shown = dict(line.split(b": ", 1) for line in lines.split(b"\r\n")[1:])[b"x-request-id"]
            assert json.loads(problem)["request_id"].encode() == shown
            assert shown.isascii()
            assert len(shown) <= 128
            assert value.encode() not in answer.replace(shown, b"") or len(value) < 4
    for line in (rig.folder / "gateway.log").read_text().split("\n")[:-1]:
        assert len(line) < 2_000
        assert line.isascii()
        assert json.loads(line)["message"]
