"""The span of an attempt: from its hand-over to its end, told by the supervisor, so that a dead child's is told too."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskgate.contract.models import Claimed, Finish, HandBack
from taskgate.tracing import TraceContext, Traces
from workers.endings import kind_of
from workers.holdings import Holding

if TYPE_CHECKING:
    from opentelemetry.trace import Span


@dataclass(slots=True)
class _Open:
    span: "Span"
    context: TraceContext
    ended_ns: int | None = None


class AttemptTraces:
    """`process <queue>` spans (OpenTelemetry's conventions for messaging), by task and epoch."""

    def __init__(self, traces: Traces, *, worker_id: str, below: bool) -> None:
        """`below`: each is a child of its submission's span, in the same trace; else linked with it."""
        self._traces = traces
        self._worker_id = worker_id
        self._below = below
        self._open: dict[tuple[str, int], _Open] = {}

    def begin(self, task: Claimed, pid: int) -> TraceContext:
        """What its handler is part of."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, SpanKind, get_current_span

        spec = task.spec
        context, links = Context(), []
        if spec.traceparent:
            submitted = self._traces.entered(TraceContext(spec.traceparent, spec.tracestate))
            if self._below:
                context = submitted
            else:
                links = [Link(get_current_span(submitted).get_span_context())]
        span = self._traces.tracer.start_span(
            f"process {spec.queue}",
            context=context,
            kind=SpanKind.CONSUMER,
            links=links,
            attributes=_attributes(task) | {"taskgate.worker_id": self._worker_id, "process.pid": pid},
        )
        opened = self._open[spec.id, task.epoch] = _Open(span, self._traces.context_of(span))
        return opened.context

    def of(self, task: Claimed) -> TraceContext | None:
        opened = self._open.get((task.id, task.epoch))
        return None if opened is None else opened.context

    def ends(self, holding: Holding, item: Finish | HandBack) -> None:
        """It has left its child. What no child had received was no attempt."""
        if isinstance(item, HandBack) and not item.ran:
            self.drop(holding.task)
            return
        opened = self._open.get((holding.id, holding.task.epoch))
        if opened is None:
            return
        opened.ended_ns = time.time_ns()
        if isinstance(item, HandBack):
            opened.span.set_attribute("taskgate.handed_back", item.reason)
        elif item.error:
            self._fail(opened, kind_of(item.error))

    def ended(self, holding: Holding, status: str) -> None:
        """The store has said what became of it."""
        opened = self._open.pop((holding.id, holding.task.epoch), None)
        if opened is None:
            return
        if status == "lost":
            self._fail(opened, status)
        opened.span.set_attribute("taskgate.outcome", status)
        opened.span.end(opened.ended_ns)

    def drop(self, task: Claimed) -> None:
        self._open.pop((task.id, task.epoch), None)

    def _fail(self, opened: _Open, kind: str) -> None:
        """Without the message: it is the handler's, and may say anything of the payload."""
        from opentelemetry.trace import StatusCode

        opened.span.set_attribute("error.type", kind)
        opened.span.set_status(StatusCode.ERROR)


def _attributes(task: Claimed) -> dict[str, Any]:
    spec = task.spec
    facts: dict[str, Any] = {
        "messaging.system": "redis",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": spec.queue,
        "messaging.message.id": spec.id,
        "messaging.message.body.size": len(task.payload),
        "taskgate.task_type": spec.type,
        "taskgate.attempt": task.attempt,
        "taskgate.tenant": spec.tenant,
        "taskgate.request_id": spec.request_id,
    }
    if (waited_ms := task.queue_wait_ms) is not None:
        facts["taskgate.queue_wait_ms"] = waited_ms
    return facts
