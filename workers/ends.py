"""The end of every attempt on its way out: its last reports, then finish or hand-back, then the log line."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog

from taskgate.contract.models import HandBack
from taskgate.settings import Settings
from workers import endings
from workers.holdings import Holding, Holdings
from workers.outbox import Outbox
from workers.run_times import RunTimes
from workers.telemetry import Telemetry
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
    ) -> None:
        self._holdings = holdings
        self._outbox = outbox
        self._telemetry = telemetry
        self._handlers = handlers
        self._worker_id = worker_id
        self._retention_ms = settings.retention_s * 1000
        self._dead_retention_ms = settings.dead_retention_s * 1000
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
        self._after_reports(
            holding, lambda: self._outbox.finish(holding.task.partition, item), partial(self._finished, holding, run_ms)
        )

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
        self._after_reports(
            holding,
            lambda: self._outbox.hand_back(holding.task.partition, item),
            partial(self._handed_back, holding, reason),
        )

    def hand_back_unknown(self, partition: int, task_id: str, epoch: int) -> None:
        """A claim whose reply never came: ours in the store, in no child of ours."""
        item = HandBack(id=task_id, epoch=epoch, ran=False, reason="unknown", retention_ms=self._retention_ms)
        self._outbox.hand_back(partition, item)

    def forget(self, holding: Holding) -> None:
        """It is another's now: nothing of it is written."""
        holding.leave_child()
        self._telemetry.forget(holding)
        self._holdings.drop(holding)

    def count_stale(self, holding: Holding) -> None:
        """A write was refused: another owns the attempt."""
        self.stale_writes += 1
        log.warning("stale write refused", **self.facts(holding))

    def facts(self, holding: Holding) -> dict[str, Any]:
        """What every log line about an attempt carries."""
        task = holding.task
        return {
            "task_id": task.id,
            "task_type": task.spec.type,
            "attempt": task.attempt,
            "worker_id": self._worker_id,
            "pid": holding.child.pid if holding.child is not None else None,
        }

    def _after_reports(
        self,
        holding: Holding,
        send: Callable[[], asyncio.Future[str]],
        answered: Callable[[asyncio.Future[str]], None],
    ) -> None:
        holding.leave_child()
        self._holdings.released_by_child(holding)
        unwritten = self._telemetry.flush(holding)
        self._telemetry.forget(holding)
        if unwritten is None:
            send().add_done_callback(answered)
        else:
            unwritten.add_done_callback(lambda _: send().add_done_callback(answered))

    def _finished(self, holding: Holding, run_ms: int | None, answer: asyncio.Future[str]) -> None:
        status = self._answered(holding, answer)
        log.info("attempt finished", outcome=status, duration_ms=run_ms, **self.facts(holding))

    def _handed_back(self, holding: Holding, reason: str, answer: asyncio.Future[str]) -> None:
        status = self._answered(holding, answer)
        log.debug("handed back", reason=reason, outcome=status, **self.facts(holding))

    def _answered(self, holding: Holding, answer: asyncio.Future[str]) -> str:
        self._holdings.drop(holding)
        if answer.cancelled():
            return "unsent"
        if (error := answer.exception()) is not None:
            log.error("the store refused an end", error=repr(error), **self.facts(holding))
            return "refused"
        if answer.result() in ("stale", "not_found"):
            self.count_stale(holding)
        return answer.result()
