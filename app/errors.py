"""Domain error -> HTTP problem (RFC 9457). Everything else raises; only this module knows codes and titles."""

import math
import random
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from app import rate_limits
from taskgate.contract import errors

MEDIA_TYPE = b"application/problem+json"
UNAVAILABLE_RETRY_S = 2


class Kind(NamedTuple):
    status: int
    title: str
    meaning: str
    """For people: the text of `GET /problems/{slug}`."""


KINDS: dict[str, Kind] = {
    "bad-request": Kind(400, "Bad request", "A header or query parameter cannot be understood; `detail` names it."),
    "body-too-large": Kind(413, "Body too large", "The request body is larger than TASKGATE_MAX_BODY_BYTES."),
    "body-timeout": Kind(408, "Body too slow", "The request body did not arrive in time. Send it again."),
    "dependency-unavailable": Kind(
        503,
        "Storage unavailable",
        "Redis does not answer. Without `outcome`, nothing was done: try again after Retry-After. `outcome: unknown` "
        "means that the request may have been carried out: look at the task with the given id, or repeat it with the "
        "same Idempotency-Key.",
    ),
    "deadline-passed": Kind(
        409, "Start deadline passed", "The task was never queued, and can not start any more: its deadline is over."
    ),
    "forbidden": Kind(403, "Forbidden", "The key may not do that; `WWW-Authenticate` names the scope that it lacks."),
    "gone": Kind(410, "Task purged", "The task existed longer ago than finished tasks are kept."),
    "head-too-large": Kind(431, "Head too large", "A request has at most 100 headers and about 32 KiB of them."),
    "idempotency-key-invalid": Kind(
        400, "Invalid idempotency key", "An Idempotency-Key has 1 to 255 printable ASCII characters."
    ),
    "idempotency-key-reused": Kind(
        422, "Idempotency key reused", "The key was used with another body. The task accepted under it is not touched."
    ),
    "internal-error": Kind(500, "Internal error", "A fault of the service, logged under the request id."),
    "invalid-cursor": Kind(
        400, "Invalid cursor", "A cursor continues the list that it was given for, with the same filters; start anew."
    ),
    "invalid-json": Kind(400, "Invalid JSON", "The body is not JSON in UTF-8 as RFC 8259 defines it."),
    "keys-full": Kind(
        409,
        "No room for a key",
        "There are as many keys as there may be, of the service or of the tenant: revoke those not in use.",
    ),
    "keys-off": Kind(409, "No keys are asked for", "Without TASKGATE_API_KEY this service asks for none."),
    "method-not-allowed": Kind(405, "Method not allowed", "The `Allow` header lists what this path answers."),
    "misdirected-request": Kind(
        421,
        "Not by that name",
        "Without a key this service answers to addresses and `localhost` alone, since a web page can let its own name "
        "mean this machine. Set TASKGATE_API_KEY, or TASKGATE_INSECURE=true.",
    ),
    "no-answer": Kind(503, "No answer", "The supervisor that runs the task did not answer in time. Try again."),
    "not-cancelable": Kind(409, "Not cancelable", "The task has already ended in another way."),
    "not-dead": Kind(409, "Not a dead letter", "Only failed tasks can be redriven."),
    "not-finished": Kind(409, "Not finished", "The task has not ended: it has no result yet, and cannot be deleted."),
    "not-found": Kind(404, "Not found", "Nothing of yours has this address."),
    "not-rotatable": Kind(409, "Not rotatable", "The key was replaced before, or its time is over."),
    "not-running": Kind(409, "Not running", "Only a task that is running has a stack."),
    "overloaded": Kind(503, "Overloaded", "This process holds as much as it can. Nothing was done: try again."),
    "queue-full": Kind(
        429,
        "Queue full",
        "As much waits as is allowed; `limit` names what ran out. Retry-After is when room is expected.",
    ),
    "queue-quota-exceeded": Kind(
        429,
        "Quota exceeded",
        "As much of yours waits as you may have; `limit` names what ran out. Retry-After is when room is expected.",
    ),
    "rate-limited": Kind(429, "Rate limited", "You submit faster than you may. Retry-After is when it is your turn."),
    "request-timeout": Kind(408, "Request too slow", "The head of the request did not arrive in time."),
    "service-draining": Kind(503, "Shutting down", "This process takes no new tasks any more. Try again."),
    "starting": Kind(503, "No task types yet", "No worker has published its task types yet. Try again."),
    "too-many-streams": Kind(429, "Too many streams", "As many event streams of this key are open as it may have."),
    "unauthorized": Kind(401, "Unauthorized", "Send `Authorization: Bearer <key>`."),
    "unique-conflict": Kind(
        409,
        "Unique key in use",
        "Another task with the same unique_key has not ended; `task_id` and `task_status` tell of it.",
    ),
    "unknown-field": Kind(400, "Unknown field", "`fields` names something that a task does not have."),
    "unsupported-media-type": Kind(415, "Unsupported media type", "Bodies are application/json, or a +json type."),
    "url-too-long": Kind(414, "URL too long", "A URL has at most 8 KiB."),
    "validation-error": Kind(422, "Invalid request", "`errors` lists what is wrong and where (JSON Pointers)."),
}


class Fault(msgspec.Struct, frozen=True):
    """One thing wrong with a body: where (JSON Pointer in fragment form) and what; never the value itself."""

    pointer: str
    detail: str
    code: str


class Problem(Exception):
    """What a request is refused with."""

    def __init__(
        self,
        slug: str,
        detail: str = "",
        *,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(slug)
        self.slug = slug
        self.status = KINDS[slug].status
        self.detail = detail
        self.members = members
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    def body(self, request_id: str) -> bytes:
        kind = KINDS[self.slug]
        document = {
            "type": f"/problems/{self.slug}",
            "title": kind.title,
            "status": kind.status,
            "detail": self.detail or kind.meaning,
            "instance": f"/requests/{request_id}",
            "request_id": request_id,
            **self.members,
        }
        return msgspec.json.encode(document)

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", MEDIA_TYPE),
            (b"content-language", b"en"),
            (b"cache-control", b"no-store"),
            *((name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()),
        ]


def problem_of(error: errors.TaskgateError, *, task_id: str | None = None) -> Problem:
    """The answer to a domain error. `task_id`: of a submission whose outcome may be unknown."""
    match error:
        case errors.TaskNotFound():
            return Problem("not-found", "There is no such task.")
        case errors.KeyNotFound():
            return Problem("not-found", "There is no such key.")
        case errors.KeysFull():
            return Problem("keys-full")
        case errors.Refused():
            return _refused(error)
        case errors.IdempotencyConflict():
            return Problem("idempotency-key-reused")
        case errors.UniqueConflict():
            return Problem("unique-conflict", str(error), task_id=error.task_id, task_status=error.status)
        case errors.NotCancelable():
            return Problem("not-cancelable", str(error), task_status=error.status)
        case errors.NotDead():
            return Problem("not-dead", str(error), task_status=error.status)
        case errors.DeadlinePassed():
            return Problem("deadline-passed")
        case errors.NotFinished():
            return Problem("not-finished", str(error), retry_after_s=1, task_status=error.status)
        case errors.ResultGone():
            return Problem("gone", "The result was dropped: finished tasks kept more than TASKGATE_RETENTION_BYTES.")
        case errors.OutcomeUnknown():
            known: dict[str, Any] = {} if task_id is None else {"task_id": task_id}
            detail = _LOOK_FIRST if task_id is None else ""
            return Problem(
                "dependency-unavailable", detail, retry_after_s=UNAVAILABLE_RETRY_S, outcome="unknown", **known
            )
        case errors.StoreUnavailable():
            return Problem("dependency-unavailable", "Redis does not answer.", retry_after_s=UNAVAILABLE_RETRY_S)
    raise error


_LOOK_FIRST = (
    "Redis does not answer. The request may have been carried out: look what has changed before you repeat it."
)

_REFUSED = {
    errors.QueueFull: "queue-full",
    errors.QuotaExceeded: "queue-quota-exceeded",
    errors.RateLimited: "rate-limited",
    errors.KeyRateLimited: "rate-limited",
}


def retry_after_s(error: errors.Refused) -> int:
    """Whole seconds, a little later than room is expected, so that callers do not come at once."""
    return max(1, math.ceil(error.retry_after_s * random.uniform(1, 1.2)))


def _refused(error: errors.Refused) -> Problem:
    return Problem(
        _REFUSED[type(error)],
        str(error),
        retry_after_s=retry_after_s(error),
        headers={} if error.room is None else rate_limits.refused(error, error.room),
        limit=error.limit,
        queue=error.queue,
        **{"violated-policies": [error.limit]},
    )


def problem_of_status(status: int, headers: Mapping[str, str] | None) -> Problem:
    """What FastAPI itself refuses: no such path, another method, an unreadable body."""
    slugs = {404: "not-found", 405: "method-not-allowed", 413: "body-too-large", 415: "unsupported-media-type"}
    slug = slugs.get(status, "bad-request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "internal-error")
    return Problem(slug, headers=headers)
