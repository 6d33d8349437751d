"""A collector: OTLP over HTTP, as any other receives it."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    def __init__(self) -> None:
        self.raw = b""
        self.spans: list[Any] = []
        self.services: dict[bytes, str] = {}
        """By span id: the `service.name` that told it."""
        self.url = ""

    def take(self, body: bytes) -> None:
        self.raw += body
        for told in ExportTraceServiceRequest.FromString(body).resource_spans:
            [service] = [one.value.string_value for one in told.resource.attributes if one.key == "service.name"]
            for scope in told.scope_spans:
                self.services |= dict.fromkeys([span.span_id for span in scope.spans], service)
                self.spans += scope.spans  # last: whoever finds a span finds its service

    def named(self, name: str) -> Any:
        [span] = [span for span in self.spans if span.name == name]
        return span

    def about(self, task_id: str, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name and facts(span).get("messaging.message.id") == task_id]


def facts(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        collector.url = f"http://127.0.0.1:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield collector
        server.shutdown()
        serving.join()
