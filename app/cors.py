"""Which pages of other origins may read answers (the Fetch standard's CORS); without origins named, none may."""

from collections.abc import Iterable

from app.reply import Headers, Reply

METHODS = ("GET", "HEAD", "POST", "DELETE")
_TAKEN = (
    "Authorization, Cache-Control, Content-Encoding, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, "
    "Prefer, X-Request-ID, traceparent, tracestate"
)
_SHOWN = (
    b"ETag, Idempotent-Replayed, Link, Location, Preference-Applied, RateLimit, RateLimit-Policy, Retry-After, "
    b"Unique-Existing, X-Request-ID, X-Task-ID, X-Task-Status, WWW-Authenticate, traceresponse"
)
_MAX_AGE_S = b"600"
_VARY = (b"vary", b"Origin")
"""Of every answer, also to who names no origin: a cache must not give one's answer to another."""


class Cors:
    """No cookies, so no credentials are ever allowed: a page needs a key of its own."""

    def __init__(self, origins: Iterable[str], *, tenant_header: str | None = None) -> None:
        taken = _TAKEN if tenant_header is None else f"{_TAKEN}, {tenant_header}"
        self._lines: dict[bytes | None, Headers] = {}
        self._preflight: dict[bytes | None, Headers] = {}
        for origin in map(str.encode, origins):
            allowed = (b"access-control-allow-origin", origin)
            self._lines[origin] = [allowed, (b"access-control-expose-headers", _SHOWN), _VARY]
            self._preflight[origin] = [
                (b"access-control-allow-methods", ", ".join(METHODS).encode()),
                (b"access-control-allow-headers", taken.encode()),
                (b"access-control-max-age", _MAX_AGE_S),
            ]

    def lines(self, origin: bytes | None) -> Headers:
        """What any answer to a page of that origin carries."""
        return self._lines.get(origin, [_VARY])

    def preflight(self, headers: dict[bytes, bytes]) -> Reply | None:
        """The answer to an OPTIONS request, which brings no key; None: no page of an origin that is named asks."""
        found = self._preflight.get(headers.get(b"origin"))
        return None if found is None or b"access-control-request-method" not in headers else Reply(204, found, b"")
