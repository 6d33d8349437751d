"""Filters of lists and sweeps: what they want, how a query string says it, and how OpenAPI describes that."""

import math
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any

import msgspec
from starlette.datastructures import QueryParams

from app.errors import Problem
from taskgate.contract.ids import NAME_RULE, is_name
from taskgate.contract.models import TaskRecord
from taskgate.contract.states import Status

DEFAULT_LIMIT, MAX_LIMIT = 50, 200

Parameters = list[dict[str, Any]]


def parameter(name: str, schema: dict[str, Any], description: str = "") -> dict[str, Any]:
    """As OpenAPI describes it."""
    return {"name": name, "in": "query", "schema": schema, "description": description}


TEXT: dict[str, Any] = {"type": "string"}
TIME: dict[str, Any] = {"type": "string", "format": "date-time"}
BY_TYPE = parameter("type", TEXT, "task type")
BY_QUEUE = parameter("queue", TEXT)
LIMIT = parameter(
    "limit", {"type": "integer", "minimum": 1, "default": DEFAULT_LIMIT}, f"more than {MAX_LIMIT} is that"
)
CURSOR = parameter("cursor", TEXT, "`next_cursor` of the page before, with the same filters")

Time = Annotated[datetime, msgspec.Meta(tz=True)]
METADATA = "metadata."


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks a list shows. `letters`: dead letters alone, by the time of their end instead of their creation."""

    letters: bool = False
    statuses: tuple[str, ...] = ()
    type: str = ""
    queue: str = ""
    kind: str = ""
    """Of its error."""
    after_ms: int | None = None
    before_ms: int | None = None
    metadata: tuple[tuple[str, str], ...] = ()

    def fits(self, record: TaskRecord) -> bool:
        """Looked at again as it was read: it may have moved on since the page was made."""
        return (
            (not self.letters or record.status is Status.FAILED)
            and (not self.statuses or record.status in self.statuses)
            and self.type in ("", record.spec.type)
            and self.queue in ("", record.spec.queue)
            and self.kind in ("", record.error_kind())
            and (not self.metadata or self._has_metadata(record.spec.metadata))
        )

    def order(self, record: TaskRecord) -> tuple[int, str]:
        """Where it stands in the list: the larger, the nearer to its top."""
        return record.finished_ms if self.letters else record.created_ms, record.id

    def _has_metadata(self, raw: msgspec.Raw | msgspec.UnsetType) -> bool:
        if raw is msgspec.UNSET:
            return False
        found: dict[str, Any] = msgspec.json.decode(raw)
        return all(key in found and _text(found[key]) == value for key, value in self.metadata)


def _text(value: Any) -> str:
    """A metadata value as a query writes it: strings as they are, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def check_names(query: QueryParams, known: Collection[str], *, metadata: bool = False) -> None:
    """A filter that is misspelt would show, and let a client delete, what it did not mean."""
    unknown = [name for name in query if name not in known and not (metadata and is_metadata(name))]
    if unknown:
        raise Problem("bad-request", f"There is no filter `{min(unknown)[:64]}`.")
    for name, times in Counter(name for name, _ in query.multi_items()).items():
        if times > 1 and name != "status":
            raise Problem("bad-request", f"`{name[:64]}` is given more than once.")


def is_metadata(name: str) -> bool:
    return name.startswith(METADATA) and len(name) > len(METADATA)


def name_of(query: QueryParams, name: str) -> str:
    given = query.get(name)
    if given is None:
        return ""
    if not is_name(given):
        raise Problem("bad-request", f"`{name}` has {NAME_RULE}")
    return given


def time_ms_of(query: QueryParams, name: str) -> int | None:
    given = query.get(name)
    if given is None:
        return None
    try:
        return unix_ms(msgspec.convert(given, Time))
    except (msgspec.ValidationError, ValueError, OverflowError):
        raise Problem("bad-request", f"`{name}` is a time such as 2026-11-29T12:00:00Z.") from None


def unix_ms(time: datetime) -> int:
    """The first millisecond that is not before it."""
    return math.ceil(time.timestamp() * 1000)


def limit_of(query: QueryParams) -> int:
    given = query.get("limit")
    if given is None:
        return DEFAULT_LIMIT
    if not (given.isascii() and given.isdigit()) or int(given[:9]) < 1:
        raise Problem("bad-request", f"`limit` is a number from 1 to {MAX_LIMIT}.")
    return min(int(given[:9]), MAX_LIMIT)
