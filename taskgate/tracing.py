"""Traces by OpenTelemetry: contexts as W3C writes them, and who exports them. Nothing is imported where nobody does."""

import os
import re
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from taskgate.metrics import version

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = structlog.get_logger()

_SWITCHES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
CLOSE_S = 2.0
"""What is not exported by then is lost with its process: no collector holds up a stop."""

_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE_BYTES, _STATE_MEMBERS = 512, 32
_KEY = rb"[a-z0-9][a-z0-9_*/@-]{0,255}"
_CHAR = rb"[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_STATE = re.compile(rb"(?:%b=(?:(?: |%b){0,255}%b))?" % (_KEY, _CHAR, _CHAR))


class TraceContext(NamedTuple):
    """Where in which trace something happens; "" for none."""

    parent: str = ""
    """`00-<trace id>-<span id>-<flags>`"""
    state: str = ""


NO_CONTEXT = TraceContext()


def context_in(headers: Mapping[bytes, bytes]) -> TraceContext:
    """What a client has sent, if it is well-formed (https://www.w3.org/TR/trace-context/)."""
    found = _PARENT.fullmatch(headers.get(b"traceparent", b"").strip())
    if found is None or (found[4] is not None and found[0][:2] == b"00"):
        return NO_CONTEXT
    parent = b"00-%b-%b-%b" % found.group(1, 2, 3)
    state = headers.get(b"tracestate", b"").strip()
    members = [member.strip() for member in state.split(b",")]
    fits = len(state) <= _STATE_BYTES and len(members) <= _STATE_MEMBERS and all(map(_STATE.fullmatch, members))
    return TraceContext(parent.decode(), b",".join(filter(None, members)).decode() if fits else "")


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables name an exporter."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return environ.get("OTEL_TRACES_EXPORTER") != "none" and any(environ.get(name) for name in _SWITCHES)


class NoSuchExporter(Exception):
    """Nothing that is installed has that name."""


class Traces:
    """The exporting side of one process."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        from taskgate.sampling import AsLinked

        provider.sampler = AsLinked(provider.sampler)
        self._provider = provider
        self._propagator = TraceContextTextMapPropagator()
        self.tracer = provider.get_tracer("taskgate", version())

    def entered(self, context: TraceContext) -> "Context":
        """A context of OpenTelemetry below that one, and below nothing else."""
        from opentelemetry.context import Context

        return self._propagator.extract(_carrier(context), Context())

    def context_of(self, span: "Span") -> TraceContext:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span, Context()))
        return TraceContext(carrier.get("traceparent", ""), carrier.get("tracestate", ""))

    def close(self) -> None:
        """Export what is left, for a moment."""
        closing = threading.Thread(target=self._provider.shutdown, name="taskgate-traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _carrier(context: TraceContext) -> dict[str, str]:
    return {"traceparent": context.parent, "tracestate": context.state}


def start(part: str, environ: Mapping[str, str] = os.environ) -> Traces | None:
    """None: no exporter is named, or none can be had. `part`: gateway, worker."""
    if not wanted(environ):
        return None
    try:
        exporters = [_exporter(name, environ) for name in _names(environ)]
    except ImportError as error:
        log.warning("no traces: OpenTelemetry is not installed (taskgate[otel])", error=str(error))
        return None
    except NoSuchExporter as error:
        log.warning("no traces: there is no such exporter", exporter=str(error))
        return None
    except Exception as error:  # noqa: BLE001 — a wrong variable of theirs must not keep the service from its work
        log.warning("no traces: the exporter cannot be made", error=type(error).__name__)
        return None
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=_resource(part), shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    log.info("traces are exported", part=part, exporter=", ".join(type(each).__name__ for each in exporters))
    return Traces(provider)


def _names(environ: Mapping[str, str]) -> list[str]:
    given = (environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")
    return [name.strip() for name in given]


def _exporter(name: str, environ: Mapping[str, str]) -> Any:
    """As the SDK finds it by its variables, which say the rest (endpoint, headers, certificates).

    Raises:
        NoSuchExporter: nothing that is installed has that name.
    """
    from importlib.metadata import entry_points

    import opentelemetry.sdk.trace.export  # noqa: F401 — without it no name is found, and no name is to blame

    if name == "otlp":
        protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        name = _PROTOCOLS.get(protocol or "http/protobuf", name)
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise NoSuchExporter(name)
    return found[0].load()()


def _resource(part: str) -> Any:
    from opentelemetry.sdk.resources import Resource

    given = Resource.create({"service.version": version(), "service.instance.id": _instance()})
    if str(given.attributes["service.name"]).startswith("unknown_service"):
        given = given.merge(Resource({"service.name": f"taskgate-{part}"}))
    return given


def _instance() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"
