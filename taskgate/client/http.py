"""The calls, over HTTP. The only module that knows httpx."""

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, cast
from urllib.parse import quote

import httpx
import httpx_sse

from taskgate.client.errors import Refused, ServiceError, Unreachable
from taskgate.client.models import Event, Task, TaskOptions
from taskgate.client.patience import Patience

T = TypeVar("T")

_SILENCE_S = 45.0
"""Three pings of the server: a stream that is silent for longer is dead."""
_STEADY_S = 10.0
"""A connection that held for so long was a good one, events or not."""


class Client:
    """One service. May be shared by threads.

    What may be repeated without a second effect (submissions, which carry an Idempotency-Key, and event streams) is
    tried again for `patience_s`, at the time that `Retry-After` names; `on_wait` is told before each wait.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        api_key: str | None = None,
        timeout_s: float = 10.0,
        patience_s: float = 30.0,
        on_wait: Callable[[ServiceError, float], None] = lambda error, delay_s: None,
    ) -> None:
        base = _base(url)
        self.url = str(base)
        self._patience_s = patience_s
        self._on_wait = on_wait
        self._timeout_s = timeout_s
        headers = {"Accept": "application/json", "User-Agent": "taskgate"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        # A proxy from the environment cannot reach this machine's own loopback.
        beyond = not (base.host in ("localhost", "::1") or base.host.startswith("127."))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        self._http = httpx.Client(base_url=base, headers=headers, timeout=timeout_s, limits=limits, trust_env=beyond)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def submit(
        self, task_type: str, payload: Any, *, idempotency_key: str | None = None, options: TaskOptions | None = None
    ) -> Task:
        """The accepted task, one however often this had to be sent. `payload`: a JSON value, or JSON as bytes."""
        envelope = _json({"type": task_type, **(options or {})})
        body = envelope[:-1] + b',"payload":' + (payload if isinstance(payload, bytes) else _json(payload)) + b"}"
        headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._patiently(lambda: self._task("POST", "/tasks", content=body, headers=headers))

    def get(self, task_id: str) -> Task:
        """The task now, not as some cache remembers it."""
        return self._task("GET", _path(task_id), headers={"Cache-Control": "no-cache"})

    def result(self, task_id: str) -> bytes:
        """The result as its handler returned it, JSON. Refused (409) while there is none."""
        return self._request("GET", _path(task_id, "result")).content

    def cancel(self, task_id: str) -> Task:
        return self._task("POST", _path(task_id, "cancel"))

    def redrive(self, task_id: str) -> Task:
        return self._task("POST", _path(task_id, "redrive"))

    def workers(self) -> list[dict[str, Any]]:
        return _items(self._request("GET", "/workers"))

    def dead_letters(self, *, queue: str = "default", limit: int = 50) -> list[Task]:
        response = self._request("GET", "/dead-letters", params={"queue": queue, "limit": limit})
        return [_as_task(one) for one in _items(response)]

    def events(self, task_id: str, *, last_event_id: str = "") -> Iterator[Event]:
        """The task's events to its end, through broken connections; none twice that has an id, none left out.

        Starts with a `snapshot`, or after `last_event_id`. A `gap` says that the service no longer had what follows.
        """
        stream = _Stream(last_event_id)
        patience = Patience(self._patience_s)
        while not stream.ended:
            connected = time.monotonic()
            try:
                for event in self._connection(task_id, stream):
                    patience.reset()
                    yield event
                delay_s = stream.retry_s * random.uniform(0.5, 1.0)
            except ServiceError as error:
                if time.monotonic() - connected > _STEADY_S:
                    patience.reset()
                delay_s = patience.delay_s(error)
                self._on_wait(error, delay_s)
            if not stream.ended:
                time.sleep(delay_s)

    def _connection(self, task_id: str, stream: "_Stream") -> Iterator[Event]:
        headers = {"Last-Event-ID": stream.last_id} if stream.last_id else {}
        timeout = httpx.Timeout(self._timeout_s, read=_SILENCE_S)
        with (
            _unreachable(self.url),
            httpx_sse.connect_sse(
                self._http, "GET", _path(task_id, "events"), headers=headers, timeout=timeout
            ) as source,
        ):
            if source.response.status_code == 204:
                stream.ended = True
                return
            if source.response.is_error:
                source.response.read()
            _check(source.response)
            for message in source.iter_sse():
                event = stream.take(message)
                if event is not None:
                    yield event

    def _task(self, method: Literal["GET", "POST"], path: str, **request: Any) -> Task:
        return _as_task(_object(self._request(method, path, **request), strict=True))

    def _request(self, method: Literal["GET", "POST"], path: str, **request: Any) -> httpx.Response:
        with _unreachable(self.url):
            response = self._http.request(method, path, **request)
        _check(response)
        return response

    def _patiently(self, once: Callable[[], T]) -> T:
        patience = Patience(self._patience_s)
        while True:
            try:
                return once()
            except ServiceError as error:
                delay_s = patience.delay_s(error)
                self._on_wait(error, delay_s)
            time.sleep(delay_s)


@dataclass(slots=True)
class _Stream:
    """Where in a task's events this client is, over all its connections."""

    last_id: str
    retry_s: float = 1.0
    ended: bool = False

    def take(self, message: httpx_sse.ServerSentEvent) -> Event | None:
        if message.retry is not None:
            self.retry_s = message.retry / 1000
        if not message.data:
            return None
        try:
            data = json.loads(message.data)
        except ValueError:
            raise Unreachable("its event stream is not Taskgate's") from None
        self.last_id = message.id or self.last_id
        self.ended = message.event == "end"
        return Event(self.last_id, message.event, data)


def _base(url: str) -> httpx.URL:
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"not a URL: {url!r} ({error}); set TASKGATE_URL") from None
    if base.scheme not in ("http", "https") or not base.host:
        raise ValueError(f"not an http(s) URL: {url!r}; set TASKGATE_URL")
    return base


def _path(task_id: str, *more: str) -> str:
    return "/".join(("/tasks", quote(task_id, safe=""), *more))


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


@contextmanager
def _unreachable(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError as error:
        raise Unreachable(f"{url} cannot be reached: {error}") from error
    except httpx.TimeoutException as error:
        raise Unreachable(f"{url} did not answer in time") from error
    except (httpx.TransportError, httpx_sse.SSEError) as error:
        raise Unreachable(f"{url} broke off: {error}") from error


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    if response.is_error:
        raise Refused(response.status_code, _object(response), retry_after=response.headers.get("retry-after"))
    raise Unreachable(f"{response.url} answers {response.status_code}: not Taskgate")


def _object(response: httpx.Response, *, strict: bool = False) -> dict[str, Any]:
    """The JSON object of an answer; another body (some proxy's page) is {} or, if `strict`, not Taskgate."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict):
        return body
    if strict:
        raise Unreachable(f"{response.url} does not answer as Taskgate")
    return {}


def _items(response: httpx.Response) -> list[dict[str, Any]]:
    return list(_object(response, strict=True).get("items", []))


def _as_task(body: dict[str, Any]) -> Task:
    return cast("Task", body)
