"""What both clients tell httpx, and what its failures mean. Streams are httpx-sse's."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import httpx_sse

from taskgate.client import trace
from taskgate.client.errors import Unreachable
from taskgate.client.steps import Answer, Message, Open, Send, check_header
from taskgate.network import is_loopback

DEFAULT_URL = "http://127.0.0.1:8080"

_LEAST_S = 0.001
"""A timeout of 0 would fail what has its answer at once."""


def base_of(url: str) -> httpx.URL:
    """Raises ValueError: it is no http(s) URL."""
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"not a URL: {url!r} ({error}); set TASKGATE_URL") from None
    if base.scheme not in ("http", "https") or not base.host:
        raise ValueError(f"not an http(s) URL: {url!r}; set TASKGATE_URL")
    return base


def options_of(base: httpx.URL, *, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    headers = {"Accept": "application/json", "User-Agent": "taskgate"}
    if api_key:
        check_header("api_key", api_key)
        headers["Authorization"] = f"Bearer {api_key}"
    return {
        "base_url": base,
        "headers": headers,
        "timeout": timeout_s,
        # Over http:// there is nothing to verify, and loading the certificates takes 20 ms.
        "verify": httpx.create_ssl_context() if base.scheme == "https" else False,
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=8),
        # A proxy from the environment cannot reach this machine's own loopback.
        "trust_env": not is_loopback(base.host),
    }


def request_of(step: Send, timeout_s: float) -> dict[str, Any]:
    left_s = max(_LEAST_S, step.until - time.monotonic())
    return {
        "method": step.method,
        "url": step.path,
        "params": step.params or None,
        "headers": {**step.headers, **trace.headers()},
        "content": step.content,
        "timeout": httpx.Timeout(min(timeout_s, left_s), read=min(timeout_s + step.held_s, left_s)),
    }


def stream_of(step: Open, timeout_s: float) -> dict[str, Any]:
    return {
        "method": "GET",
        "url": step.path,
        "params": step.params or None,
        "headers": {**step.headers, **trace.headers()},
        "timeout": httpx.Timeout(timeout_s, read=step.silence_s),
    }


def answer_of(response: httpx.Response, body: bytes) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, body, str(response.url))


def message_of(event: httpx_sse.ServerSentEvent) -> Message:
    return Message(event.event, event.data, event.id, event.retry)


@contextmanager
def unreachable(base: httpx.URL) -> Iterator[None]:
    """Raises Unreachable for whatever keeps an answer from coming."""
    try:
        yield
    except httpx.ConnectError as error:
        raise Unreachable(f"{base} cannot be reached: {error}") from error
    except httpx.TimeoutException as error:
        raise Unreachable(f"{base} did not answer in time") from error
    except (httpx.TransportError, httpx.DecodingError, httpx_sse.SSEError) as error:
        raise Unreachable(f"{base} broke off: {error}") from error
