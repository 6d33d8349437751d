"""The command line in this process, and a real HTTP receiver on loopback that answers as it is told."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner, Result

TASK_ID = "0193c0de-7a3e-7b1c-9d2f-0123456789ab"


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Answer = Callable[["_Handler"], None]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Receiver"

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        if self.server.numbers is not None and self.path == f"/tasks/{TASK_ID}":
            self.server.numbers(self)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Request(self.command, self.path, headers, body))
        self.server.answers.pop(0)(self)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Receiver(ThreadingHTTPServer):
    """Gives its `answers` one after the other and keeps the `requests`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Answer] = []
        self.requests: list[Request] = []
        self.numbers: Answer | None = None
        """For live lines, which ask once a second for what no event tells: it takes no other's answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def answer(status: int, body: Any = b"", **headers: str) -> Answer:
    """A whole answer; a `body` that is not bytes is sent as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    def send(handler: _Handler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        if status != 204:
            handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    return send


def problem(status: int, slug: str, detail: str = "", *, errors: Any = None, **headers: str) -> Answer:
    body = {"type": f"/problems/{slug}", "title": slug, "status": status, "detail": detail, "errors": errors or []}
    return answer(status, body, Content_Type="application/problem+json", **headers)


def stream(text: str) -> Answer:
    """An event stream that ends (or breaks off) where `text` does."""

    def send(handler: _Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(text.encode())
        handler.close_connection = True

    return send


def hang_up(handler: _Handler) -> None:
    """The request was read, and no answer ever comes."""
    handler.close_connection = True


def silent(handler: _Handler) -> None:
    """No answer comes, however long the client waits, as from a process that is stopped."""
    handler.connection.recv(1)
    handler.close_connection = True


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `taskgate …`; `env` adds to an environment without any TASKGATE_ variable."""
    for name in [name for name in os.environ if name.startswith("TASKGATE_")]:
        monkeypatch.delenv(name)

    def run(*args: str, env: dict[str, str] | None = None, stdin: str | bytes | None = None) -> Result:
        from taskgate.cli.app import app

        return CliRunner().invoke(app, list(args), env=env, input=stdin, prog_name="taskgate")

    return run
