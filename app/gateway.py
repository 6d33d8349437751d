"""The parts of one gateway process, and their start and stop."""

import asyncio
import contextlib
import gc
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from types import FrameType

import redis.asyncio as redis
import structlog

from app.access import Access
from app.estimates import Estimates
from app.hub import Hub
from app.metrics import Metrics
from app.queues import Queues
from app.readiness import Readiness
from app.refusals import RefusalLog
from app.reply import Caller
from app.siblings import Siblings
from app.snapshots import Snapshots
from app.stack import Stacks
from app.status import StatusEndpoint
from app.stream_tokens import StreamTokens
from app.submit import SubmitEndpoint
from app.traces import RequestTraces
from app.types import TypeRegistry
from taskgate.contract.key_store import KeyStore
from taskgate.contract.shares import OTHERS
from taskgate.contract.store import Store
from taskgate.settings import Settings
from taskgate.tracing import Traces

logger = structlog.get_logger()

GC_THRESHOLD = 20_000
"""Requests leave no cycles; at the default of 700 the collector would look for them every few dozen."""


class Gateway:
    """Everything that requests share. Knows nothing of HTTP but its two hot endpoints."""

    def __init__(
        self,
        settings: Settings,
        client: redis.Redis,
        siblings: Siblings | None = None,
        *,
        traces: Traces | None = None,
    ) -> None:
        """`siblings`: the other processes of this gateway, if there are any. `traces`: closed with it."""
        self.settings = settings
        self.limits = settings.limits
        self.draining = False
        self.refusals = RefusalLog()
        self.traces = None if traces is None else RequestTraces(traces)
        self._client = client
        self.store = Store(
            client,
            partitions=settings.partitions,
            retention_ms=settings.retention_s * 1000,
            dead_retention_ms=settings.dead_retention_s * 1000,
            retention_bytes=int(settings.retention_bytes),
        )
        self.metrics = Metrics(set(settings.policy.queues) - {OTHERS}, siblings)
        self.keys = KeyStore(client)
        self.stream_tokens = StreamTokens(self.keys)
        self.access: Access | None = None
        """None: no key is asked for."""
        if settings.api_key is not None:
            self.access = Access(self.keys, settings.api_key.get_secret_value(), partitions=settings.partitions)
        self.types = TypeRegistry(self.store)
        self.snapshots = Snapshots(
            self.store,
            Estimates(self.store, settings.policy, limit_of=self.types.limit_of),
            ttl_s=settings.status_cache_ms / 1000,
            retention_s=settings.retention_s,
        )
        self.hub = Hub(client, self.store, self.snapshots, self.access)
        self.stacks = Stacks(self.store, self.hub)
        self.submit = SubmitEndpoint(
            self.store,
            types=self.types,
            hub=self.hub,
            limits=self.limits,
            policy=settings.policy,
            metrics=self.metrics,
            traces=self.traces,
        )
        self.status = StatusEndpoint(self.hub)
        self.queues = Queues(self.store, self.types, settings)
        self.readiness = Readiness(self.store, settings, self.metrics.vitals)

    def is_apart(self, caller: Caller) -> bool:
        """Whether others share the service, of whom this caller may know nothing."""
        return self.settings.tenant_header is not None or bool(caller.grant.key_id)

    def drain(self) -> None:
        """Take nothing new, end the streams; idempotent."""
        if not self.draining:
            self.draining = True
            self.readiness.draining = True
            self.submit.drain()
            self.hub.drain()
            logger.info("gateway drains")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The life of the process: wake-ups are listened for, and a signal to stop drains at once."""
        gc.collect()
        gc.freeze()  # what has been imported lives as long as the process: do not look at it again and again
        gc.set_threshold(GC_THRESHOLD)
        running = [asyncio.create_task(each) for each in (self.hub.run(), self.metrics.run(self))]
        if self.access is not None:
            running.append(asyncio.create_task(self.access.run()))
        try:
            with self._signals():
                yield
        finally:
            self.drain()
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self.close()

    async def close(self) -> None:
        await self._client.aclose()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Chain to the server's own handlers: the server waits for streams, and streams must know that it waits."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        servers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def stop(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.drain)
            before = servers[signal.Signals(number)]
            if callable(before):
                before(number, frame)

        for number in servers:
            signal.signal(number, stop)
        try:
            yield
        finally:
            for number, before in servers.items():
                if signal.getsignal(number) is stop:
                    signal.signal(number, before)
