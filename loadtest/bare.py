"""The least that an ASGI application can do: what the gateway's CPU time per request is compared with."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
_BODY = b'{"id":"0193762e-7a3c-7000-8000-000000000000","status":"queued"}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode())]


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    status = 202 if scope["method"] == "POST" else 200
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": status, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _BODY})
