"""`GET /tasks`: a tenant's tasks, newest first, by filters; how far one page looks is bounded, whatever it finds."""

import asyncio
import hashlib
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from starlette.datastructures import QueryParams

from app.errors import Problem
from taskgate.contract.ids import NAME_RULE, is_name
from taskgate.contract.models import Mark, TaskRecord
from taskgate.contract.script import BATCH
from taskgate.contract.states import Status
from taskgate.contract.store import Store

DEFAULT_LIMIT, MAX_LIMIT = 50, 200
SCANNED_A_PAGE = 1_000

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
PARAMETERS: Parameters = [
    parameter("status", TEXT, "one or more, with commas"),
    BY_TYPE,
    BY_QUEUE,
    parameter("metadata.{key}", TEXT, "what your metadata has under that key; values that are no text as JSON"),
    parameter("created_after", TIME, "then or later"),
    parameter("created_before", TIME, "before then"),
    LIMIT,
    CURSOR,
]

_SEAL_BYTES = 9
_METADATA = "metadata."
_KNOWN = {each["name"] for each in PARAMETERS}
Time = Annotated[datetime, msgspec.Meta(tz=True)]


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


_ANY = (Wanted(), Wanted(letters=True))


class Request(NamedTuple):
    wanted: Wanted
    limit: int
    start: Mark


def parse(query: QueryParams, tenant: str) -> Request:
    """Raises Problem: a filter that is none, or a cursor that is not of this list."""
    check_names(query, _KNOWN, metadata=True)
    statuses = tuple(sorted({word for given in query.getlist("status") for word in given.split(",")}))
    if unknown := set(statuses) - set(Status):
        raise Problem("bad-request", f"`status`: there is no `{min(unknown)[:64]}`.")
    wanted = Wanted(
        statuses=statuses,
        type=name_of(query, "type"),
        queue=name_of(query, "queue"),
        after_ms=time_ms_of(query, "created_after"),
        before_ms=time_ms_of(query, "created_before"),
        metadata=tuple(sorted((key[len(_METADATA) :], value) for key, value in query.items() if _is_metadata(key))),
    )
    cursor = query.get("cursor")
    start = Mark(wanted.before_ms) if cursor is None else read_cursor(cursor, wanted, tenant)
    return Request(wanted, limit_of(query), start)


async def find(
    store: Store, tenant: str, wanted: Wanted, *, start: Mark, limit: int
) -> tuple[list[TaskRecord], Mark | None]:
    """Up to `limit` tasks after `start`, and where the next page begins; None: there are no older ones."""
    spans = [_Span(store, partition, tenant, wanted, start) for partition in store.partitions]
    found: list[TaskRecord] = []
    looks = SCANNED_A_PAGE

    def is_before(record: TaskRecord, frontier: Mark) -> bool:
        """Whether it stands in what was looked at up to that mark."""
        return wanted.order(record) >= _order(frontier)

    while True:
        # Up to the newest point that some partition has been looked at, no partition has anything unseen.
        frontier = max((span.reached for span in spans if span.reached is not None), key=_order, default=None)
        ready = sorted(
            (one for one in found if frontier is None or is_before(one, frontier)), key=wanted.order, reverse=True
        )
        if len(ready) > limit:
            return ready[:limit], Mark(*wanted.order(ready[limit - 1]))
        if frontier is None:
            return ready, None
        lagging = [span for span in spans if span.reached == frontier]
        share = min(BATCH, looks // len(lagging), limit + 1 if wanted in _ANY else BATCH)
        if len(ready) == limit or share == 0:
            return ready, frontier
        for records, scanned in await asyncio.gather(*(span.read(share) for span in lagging)):
            found += records
            looks -= scanned


class _Span:
    """How far one partition has been looked through."""

    def __init__(self, store: Store, partition: int, tenant: str, wanted: Wanted, start: Mark) -> None:
        self.reached: Mark | None = start
        """None: to its end."""
        self._store = store
        self._partition = partition
        self._tenant = tenant
        self._wanted = wanted

    async def read(self, looks: int) -> tuple[list[TaskRecord], int]:
        assert self.reached is not None
        page = await self._store.page(
            self._partition,
            self._tenant,
            start=self.reached,
            limit=looks,
            letters=self._wanted.letters,
            till_ms=self._wanted.after_ms,
            statuses=[Status(word) for word in self._wanted.statuses],
            task_type=self._wanted.type,
            queue=self._wanted.queue,
            kind=self._wanted.kind,
        )
        self.reached = page.last
        records = await self._store.read(page.ids) if page.ids else []
        return [one for one in records if one is not None and self._wanted.fits(one)], page.scanned


def _order(mark: Mark) -> tuple[float, str]:
    return math.inf if mark.at_ms is None else mark.at_ms, mark.id


def cursor_of(mark: Mark, wanted: Wanted, tenant: str) -> str:
    """Opaque; holds nothing that its reader did not see, and is of use for the same list of the same tenant only."""
    return sealed(f"{mark.at_ms}:{mark.id}", wanted, tenant)


def read_cursor(cursor: str, wanted: Wanted, tenant: str) -> Mark:
    """Raises Problem: it was made for another list, or by another than us."""
    at, _, task_id = unsealed(cursor, wanted, tenant).partition(":")
    return Mark(int(at), task_id)


def sealed(text: str, wanted: Wanted, tenant: str) -> str:
    plain = text.encode()
    return urlsafe_b64encode(_seal(plain, wanted, tenant) + plain).rstrip(b"=").decode()


def unsealed(cursor: str, wanted: Wanted, tenant: str) -> str:
    """Raises Problem: as `read_cursor`."""
    try:
        whole = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        seal, plain = whole[:_SEAL_BYTES], whole[_SEAL_BYTES:]
        if seal != _seal(plain, wanted, tenant):
            raise ValueError(cursor)
        return plain.decode()
    except ValueError:
        raise Problem("invalid-cursor") from None


def _seal(plain: bytes, wanted: Wanted, tenant: str) -> bytes:
    """Binds a cursor to its list. No secret is needed: a forged one shows its maker only the maker's own tasks."""
    return hashlib.sha256(b"\0".join((plain, tenant.encode(), msgspec.json.encode(wanted)))).digest()[:_SEAL_BYTES]


def check_names(query: QueryParams, known: Collection[str], *, metadata: bool = False) -> None:
    """A filter that is misspelt would show, and let a client delete, what it did not mean."""
    unknown = [name for name in query if name not in known and not (metadata and _is_metadata(name))]
    if unknown:
        raise Problem("bad-request", f"There is no filter `{min(unknown)[:64]}`.")
    for name, times in Counter(name for name, _ in query.multi_items()).items():
        if times > 1 and name != "status":
            raise Problem("bad-request", f"`{name[:64]}` is given more than once.")


def _is_metadata(name: str) -> bool:
    return name.startswith(_METADATA) and len(name) > len(_METADATA)


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


def limit_of(query: QueryParams, most: int = MAX_LIMIT, *, default: int = DEFAULT_LIMIT) -> int:
    given = query.get("limit")
    if given is None:
        return default
    if not (given.isascii() and given.isdigit()) or int(given[:9]) < 1:
        raise Problem("bad-request", f"`limit` is a number from 1 to {most}.")
    return min(int(given[:9]), most)


def _text(value: Any) -> str:
    """A metadata value as a query writes it: strings as they are, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
