"""The client for asyncio."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar, Unpack

import httpx
import httpx_sse

from taskgate.client import http
from taskgate.client.answers import Rows
from taskgate.client.calls import Calls, OnWait, checked
from taskgate.client.errors import Unreachable
from taskgate.client.following import Following
from taskgate.client.models import (
    ApiKey,
    Event,
    KeyOptions,
    Letter,
    LetterFilters,
    LogPage,
    NewApiKey,
    Purged,
    Queues,
    Redriven,
    Stack,
    StreamToken,
    Task,
    TaskFilters,
    TaskOptions,
    TaskPage,
)
from taskgate.client.steps import Answer, Message, Open, Pause, Read, Run, Send, Step, Steps, Tell

T = TypeVar("T")


class AsyncClient:
    """One service, for one event loop. Calls, waits and streams may run side by side.

    What may be repeated without a second effect (submissions, which carry an Idempotency-Key, waits, event streams,
    `queues`; redriving and deleting many, but not with a limit or at a rate) is tried again for `patience_s`, at the
    time that `Retry-After` names; `on_wait` is told before each wait. Everything else is sent once.
    """

    def __init__(
        self,
        url: str = http.DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = 10.0,
        patience_s: float = 30.0,
        on_wait: OnWait = lambda error, delay_s: None,
    ) -> None:
        base = http.base_of(url)
        self.url = str(base)
        self._base = base
        self._timeout_s = timeout_s
        self._calls = Calls(patience_s=patience_s, on_wait=on_wait)
        self._http = httpx.AsyncClient(**http.options_of(base, api_key=api_key, timeout_s=timeout_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def submit(
        self,
        task_type: str,
        payload: Any,
        *,
        idempotency_key: str | None = None,
        prefer_wait_s: int = 0,
        **options: Unpack[TaskOptions],
    ) -> Task:
        """The accepted task, one however often this had to be sent. `payload`: a JSON value, or JSON as bytes.

        `prefer_wait_s`: answer with the ended task, if it ends in that time (at most 60).
        """
        return await self._run(self._calls.submit(task_type, payload, idempotency_key, prefer_wait_s, options))

    async def get(self, task_id: str, *, fresh: bool = True) -> Task:
        """The task now; unless `fresh`, as it was at most a moment ago, which costs the service less."""
        return await self._run(self._calls.get(task_id, fresh=fresh))

    async def wait(self, task_id: str, *, timeout_s: float | None = None, check: bool = False) -> Task:
        """The task once it has ended.

        Raises:
            StillRunning: it was not seen to end within `timeout_s`, however long the client's patience is.
            NotSucceeded: it did not succeed, with `check`.
        """
        steps = Following(self._calls, [task_id]).end() if timeout_s is None else self._calls.end_of(task_id, timeout_s)
        return checked(await self._run(steps), check=check)

    def watch(self, *task_ids: str) -> AsyncGenerator[Task, None]:
        """Each task as it is now, and again whenever it has changed, until all have ended.

        By their event stream, or by polls while that is not to be had.
        """
        return self._iterate(Following(self._calls, task_ids).states())

    def events(self, *task_ids: str, last_event_id: str = "") -> AsyncGenerator[Event, None]:
        """The tasks' events to their ends, through broken connections; none twice that has an id, none left out.

        Starts with a `snapshot` of each, or after `last_event_id`. A `gap` says that some are no longer kept.
        """
        return self._iterate(Following(self._calls, task_ids, last_event_id).events())

    async def result(self, task_id: str) -> Any:
        """What the handler returned. None also when it returned nothing. Refused (NotFinished) before the end."""
        raw = await self.result_json(task_id)
        return None if raw is None else json.loads(raw)

    async def result_json(self, task_id: str) -> bytes | None:
        """The result's bytes, as kept: no number loses a digit."""
        return await self._run(self._calls.result(task_id))

    async def cancel(self, task_id: str) -> Task:
        return await self._run(self._calls.cancel(task_id))

    async def redrive(self, task_id: str) -> Task:
        return await self._run(self._calls.redrive(task_id))

    async def delete(self, task_id: str) -> None:
        """Delete a task that has ended, with all that is kept of it."""
        await self._run(self._calls.delete(task_id))

    async def stack(self, task_id: str) -> Stack:
        """Where a running task is now."""
        return await self._run(self._calls.stack(task_id))

    async def logs(self, task_id: str, *, after: str | None = None, limit: int | None = None) -> LogPage:
        """What a task has printed and logged, oldest first, as much as one answer holds."""
        return await self._run(self._calls.logs(task_id, after, limit))

    async def list(self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[TaskFilters]) -> TaskPage:
        """Tasks, newest first."""
        return await self._run(self._calls.list(filters, limit, cursor))

    async def workers(self) -> Rows:
        return await self._run(self._calls.workers())

    async def keys(self) -> Sequence[ApiKey]:
        """The API keys, without themselves; all of these need a key with the scope keys:admin."""
        return await self._run(self._calls.keys())

    async def create_key(self, name: str, scopes: Sequence[str], **options: Unpack[KeyOptions]) -> NewApiKey:
        """A new key, which is in the answer and never shown again."""
        return await self._run(self._calls.create_key(name, scopes, options))

    async def rotate_key(self, key_id: str, *, grace_s: int = 0) -> NewApiKey:
        """A new key for an old one, which is good for `grace_s` more."""
        return await self._run(self._calls.rotate_key(key_id, grace_s))

    async def revoke_key(self, key_id: str) -> None:
        """It is refused from now on, and its streams end."""
        await self._run(self._calls.revoke_key(key_id))

    async def stream_token(self, task_id: str) -> StreamToken:
        """With which a browser may follow that task, within a minute, without a key."""
        return await self._run(self._calls.stream_token(task_id))

    async def queues(self, queue: str | None = None) -> Queues:
        """Depth by state, speed, limits and shares; `queue`: of that one only."""
        return await self._run(self._calls.queues(queue))

    async def dead_letters(
        self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[LetterFilters]
    ) -> TaskPage:
        """Failed tasks, those that ended last first."""
        return await self._run(self._calls.dead_letters(filters, limit, cursor))

    async def dead_letter(self, task_id: str) -> Letter:
        """A failed task with what came of each of its attempts."""
        return await self._run(self._calls.dead_letter(task_id))

    async def redrive_letters(
        self,
        task_ids: Sequence[str] | None = None,
        *,
        everything: bool = False,
        limit: int | None = None,
        rate_per_s: float | None = None,
        cursor: str | None = None,
        start_at: str | None = None,
        **filters: Unpack[LetterFilters],
    ) -> Redriven:
        """Give new attempts to up to 1,000 dead letters: those named, or that fit all filters, or `everything`.

        Go on with `next_cursor` until it is None; after a pause of `retry_after_s` where none was redriven. With
        other ids at the same rate go on with `start_at=next_start_at`. Without ids, but with `limit` or
        `rate_per_s`, it is sent once: a repeat would go on with others.
        """
        return await self._run(
            self._calls.redrive_letters(task_ids, filters, everything, limit, rate_per_s, cursor, start_at)
        )

    async def purge_letters(
        self,
        *,
        everything: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
        **filters: Unpack[LetterFilters],
    ) -> Purged:
        """Delete up to 1,000 dead letters that fit all filters, of which there must be one, or `everything`.

        With `limit` it is sent once: a repeat would delete others.
        """
        return await self._run(self._calls.purge_letters(filters, everything, limit, cursor))

    async def _run(self, steps: Steps[T]) -> T:
        async with _Driver(self._http, self._base, self._timeout_s) as driver:
            run = Run(steps)
            while run.step is not None:
                await driver.advance(run)
            return run.outcome

    async def _iterate(self, steps: Steps[None]) -> AsyncGenerator[Any, None]:
        async with _Driver(self._http, self._base, self._timeout_s) as driver:
            run = Run(steps)
            while run.step is not None:
                if isinstance(run.step, Tell):
                    yield run.step.value
                    run.went(None)
                else:
                    await driver.advance(run)


class _Driver:
    """Takes the steps of one call; owns the one stream that it may have open."""

    def __init__(self, client: httpx.AsyncClient, base: httpx.URL, timeout_s: float) -> None:
        self._http = client
        self._base = base
        self._timeout_s = timeout_s
        self._open = AsyncExitStack()
        self._messages: AsyncIterator[httpx_sse.ServerSentEvent] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()

    async def advance(self, run: Run[Any]) -> None:
        assert run.step is not None
        try:
            with http.unreachable(self._base):
                outcome = await self._take(run.step)
        except Unreachable as error:
            run.failed(error)
        else:
            run.went(outcome)

    async def _take(self, step: Step) -> Answer | Message | None:
        if isinstance(step, Read):
            event = None if self._messages is None else await anext(self._messages, None)
            return None if event is None else http.message_of(event)
        await self._open.aclose()
        match step:
            case Send():
                response = await self._http.request(**http.request_of(step, self._timeout_s))
                return http.answer_of(response, response.content)
            case Open():
                return await self._connect(step)
            case Pause():
                await asyncio.sleep(step.seconds)
        return None

    async def _connect(self, step: Open) -> Answer:
        request = http.stream_of(step, self._timeout_s)
        source = await self._open.enter_async_context(httpx_sse.aconnect_sse(self._http, **request))
        if source.response.status_code != 200:
            self._messages = None
            return http.answer_of(source.response, await source.response.aread())
        messages = source.aiter_sse()
        self._open.push_async_callback(messages.aclose)
        self._messages = messages
        return http.answer_of(source.response, b"")
