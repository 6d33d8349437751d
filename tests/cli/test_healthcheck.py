"""The image's HEALTHCHECK: whatever part of the service runs in the container has to say that it lives."""

import contextlib
import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "deploy" / "healthcheck.py"


@contextlib.contextmanager
def answering(code: int) -> Iterator[str]:
    """A port on which every GET is answered with that code; 0: with nothing."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if code:
                self.send_response(code if self.path == "/livez" else 404)
                self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield str(server.server_port)
        finally:
            server.shutdown()
            serving.join()


def healthy(gateway: str, worker: str) -> bool:
    environment = {"TASKGATE_PORT": gateway, "TASKGATE_WORKER_HEALTH_PORT": worker}
    done = subprocess.run([sys.executable, "-S", CHECK], env=environment, capture_output=True, text=True, check=False)
    assert bool(done.stderr) == (done.returncode != 0), done.stderr
    return done.returncode == 0


def test_either_part_alone_is_asked() -> None:
    # Bound, so that nobody else takes it; without listen() it refuses.
    with socket.socket() as taken, answering(200) as alive:
        taken.bind(("127.0.0.1", 0))
        nobody = str(taken.getsockname()[1])
        assert healthy(alive, nobody)
        assert healthy(nobody, alive)
        assert healthy(alive, "")
        assert not healthy(nobody, "")


@pytest.mark.parametrize("code", [503, 0])
def test_one_that_does_not_live_is_not_outweighed_by_another(code: int) -> None:
    with answering(200) as alive, answering(code) as ill:
        assert not healthy(alive, ill)
        assert not healthy(ill, alive)
