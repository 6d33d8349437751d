"""Which attempts are traced; loads OpenTelemetry, and so only where traces are exported."""

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult
from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, TraceState, set_span_in_context
from opentelemetry.util.types import Attributes


class AsLinked(Sampler):
    """A root that is linked with a span is told if that one's child would be: a link leads nowhere else."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        if not links:
            return self._sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)
        linked = links[0].context
        below = set_span_in_context(NonRecordingSpan(linked), Context())
        asked = self._sampler.should_sample(below, linked.trace_id, name, kind, attributes, links)
        return SamplingResult(asked.decision, asked.attributes)  # the state is the other trace's

    def get_description(self) -> str:
        return f"AsLinked{{{self._sampler.get_description()}}}"
