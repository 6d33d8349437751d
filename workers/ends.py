"""The end of every attempt on its way out: its last reports, then finish or hand-back, then the log line."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog

from taskgate.contract.models import Finish, HandBack
from taskgate.settings import Settings
from workers import endings
from workers.holdings import Holding, Holdings
from workers.metrics import Metrics
from workers.outbox import Outbox
from workers.run_times import RunTimes
from workers.telemetry import Telemetry
from workers.traces import AttemptTraces
from workers.wire import HandlerInfo

log = structlog.get_logger()


class Ends:
    """A holding given to one of these methods has left its child; it is dropped once the store has answered."""

    def __init__(
        self,
        settings: Settings,
        holdings: Holdings,
        outbox: Outbox,
        telemetry: Telemetry,
        *,
        handlers: Mapping[str, HandlerInfo],
        worker_id: str,
        traces: AttemptTraces | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._holdings = holdings
        self._outbox = outbox
        self._telemetry = telemetry
        self._handlers = handlers
        self._worker_id = worker_id
        self._traces = traces
        self._metrics = metrics or Metrics()
        self._retention_ms = settings.retention_s * 1000
        self._dead_retention_ms = settings.dead_retention_s * 1000
        outbox.facts = self._facts_of
        self.stale_writes = 0
        self.run_times = RunTimes()

    def finish(self, holding: Holding, outcome: str, *, run_ms: int | None = None, **fields: Any) -> None:
        """`outcome` and `fields`: those of `endings.finish`."""
        if run_ms is not None and outcome == "succeeded":
            self.run_times.add(holding.task.spec.type, run_ms)
        item = endings.finish(
            holding,
            outcome,
            handler=self._handlers.get(holding.task.spec.type),
            retention_ms=self._retention_ms,
            dead_retention_ms=self._dead_retention_ms,
            **fields,
        )
        self._after_reports(holding, item, partial(self._finished, holding, item, run_ms))

    def hand_back(self, holding: Holding, *, reason: str, ran: bool = True, delay_ms: int = 0) -> None:
        """Uncounted. `ran`: a child had received it."""
        if holding.ending:
            return
        item = HandBack(
            id=holding.id,
            epoch=holding.task.epoch,
            ran=ran,
            delay_ms=delay_ms,
            reason=reason,
            retention_ms=self._retention_ms,
        )
        self._after_reports(holding, item, partial(self._handed_back, holding, reason))

    def hand_back_unknown(self, partition: int, task_id: str, epoch: int) -> None:
        """A claim whose reply never came: ours in the store, in no child of ours."""
        item = HandBack(id=task_id, epoch=epoch, ran=False, reason="unknown", retention_ms=self._retention_ms)
        self._outbox.hand_back(partition, item)
        self._metrics.handed_back.add("unknown")

    def forget(self, holding: Holding) -> None:
        """It is another's now: nothing of it is written."""
        if self._traces is not None:
            self._traces.ended(holding, "lost")
        holding.leave_child()
        self._telemetry.forget(holding)
        self._holdings.drop(holding)

    def count_stale(self, holding: Holding) -> None:
        """A write was refused: another owns the attempt."""
        self.is_anothers(holding)
        log.warning("stale write refused", **self.facts(holding))

    def is_anothers(self, holding: Holding) -> None:
        """A refused write says so, or the answer to a beat, or both: it is counted once."""
        if not holding.stale:
            holding.stale = True
            self.stale_writes += 1

    def facts(self, holding: Holding) -> dict[str, Any]:
        """What every log line about an attempt carries."""
        return holding.facts() | {
            "worker_id": self._worker_id,
            "pid": holding.child.pid if holding.child is not None else None,
        }

    def _facts_of(self, task_id: str) -> dict[str, Any]:
        holding = self._holdings.get(task_id)
        return {"task_id": task_id, "worker_id": self._worker_id} if holding is None else self.facts(holding)

    def _after_reports(self, holding: Holding, item: Finish | HandBack, tell: Callable[[str], None]) -> None:
        answer = _Answer(self, holding, tell)
        if self._traces is not None:
            self._traces.ends(holding, item)
        holding.leave_child()
        self._holdings.released_by_child(holding)
        unwritten = self._telemetry.flush(holding)
        self._telemetry.forget(holding)
        if unwritten is None:
            self._outbox.end(holding.task.partition, item, answer)
        else:
            unwritten.add_done_callback(lambda _: self._outbox.end(holding.task.partition, item, answer))

    def answered(self, holding: Holding, status: str) -> None:
        """The store has taken its end, or will never."""
        self._holdings.drop(holding)
        if status in ("stale", "not_found"):
            self.count_stale(holding)

    def _finished(self, holding: Holding, item: Finish, run_ms: int | None, status: str) -> None:
        if self._traces is not None:
            self._traces.ended(holding, status)
        why = {"error_kind": endings.kind_of(item.error)} if item.error else {}
        self._metrics.ended(holding.task.spec, status, run_ms=run_ms, error_kind=why.get("error_kind"))
        log.info("attempt finished", outcome=status, duration_ms=run_ms, **why, **self.facts(holding))

    def _handed_back(self, holding: Holding, reason: str, status: str) -> None:
        if self._traces is not None:
            self._traces.ended(holding, status)
        self._metrics.handed_back.add(reason)
        log.debug("handed back", reason=reason, outcome=status, **self.facts(holding))


class _Answer:
    """Where the store's word on an end goes; each attempt has one, and a future would cost it more."""

    __slots__ = ("_ends", "_holding", "_tell")

    def __init__(self, ends: Ends, holding: Holding, tell: Callable[[str], None]) -> None:
        self._ends = ends
        self._holding = holding
        self._tell = tell

    def done(self) -> bool:
        return False

    def set_result(self, status: str) -> None:
        self._ends.answered(self._holding, status)
        self._tell(status)

    def set_exception(self, error: Exception) -> None:
        log.error("the store refused an end", error=repr(error), **self._ends.facts(self._holding))
        self.set_result("refused")

    def cancel(self) -> None:
        self.set_result("unsent")
