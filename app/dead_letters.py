"""Dead letters over HTTP: a list, one with the history of its attempts, redriving and deleting many."""

import json
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, UnsetType
from starlette.datastructures import QueryParams

from app import filters, listing
from app.envelope import fault, invalid
from app.errors import Fault, Problem
from app.filters import Wanted
from app.letter import letter_view
from app.routes import Parts, Who, listed
from app.submit import is_json
from app.sweeps import LATEST_MS, MOST, Sweeper, place_of
from app.view import encode
from taskgate.contract.errors import NotDead
from taskgate.contract.ids import NAME
from taskgate.contract.models import Mark
from taskgate.contract.states import Status

router = APIRouter(tags=["dead letters"])

_FILTERS = [
    filters.BY_QUEUE,
    filters.BY_TYPE,
    filters.parameter("kind", filters.TEXT, "of its error: exception, timeout, crash, memory, lost, overflow, …"),
    filters.parameter("after", filters.TIME, "ended then or later"),
    filters.parameter("before", filters.TIME, "ended before then"),
]
PARAMETERS = [*_FILTERS, filters.LIMIT, filters.CURSOR]
PURGE_PARAMETERS = [
    *_FILTERS,
    filters.parameter("all", {"type": "string", "enum": ["true"]}, "instead of filters: really all"),
    filters.parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST, "default": MOST}),
    filters.parameter("cursor", filters.TEXT, "`next_cursor` of the answer before, with the same filters"),
]


_Name = Annotated[str, Meta(pattern=f"^{NAME.pattern}$")]


class LetterFilter(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters. {} is all of yours."""

    queue: _Name | UnsetType = UNSET
    type: _Name | UnsetType = UNSET
    kind: _Name | UnsetType = UNSET
    """Of the error."""
    after: filters.Time | UnsetType = UNSET
    """Ended then or later."""
    before: filters.Time | UnsetType = UNSET
    """Ended before then; at most now."""

    def wanted(self) -> Wanted:
        return Wanted(
            letters=True,
            queue=self.queue or "",
            type=self.type or "",
            kind=self.kind or "",
            after_ms=None if self.after is UNSET else filters.unix_ms(self.after),
            before_ms=None if self.before is UNSET else filters.unix_ms(self.before),
        )


class RedriveBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Either `ids` or `filter`."""

    ids: list[str] | UnsetType = UNSET
    filter: LetterFilter | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MOST)] | UnsetType = UNSET
    """Redrive at most so many of those that fit the filter; if not given, 1,000."""
    rate_per_s: Annotated[float, Meta(ge=0.01, le=100_000)] | UnsetType = UNSET
    """So many start per second: they are scheduled, one after the other."""
    cursor: str | UnsetType = UNSET
    """`next_cursor` of the answer before, with the same filter."""
    start_at: filters.Time | UnsetType = UNSET
    """With `ids` and `rate_per_s`: the first starts then, not now; `next_start_at` of the answer before."""


_body = msgspec.json.Decoder(RedriveBody).decode


@router.get("/dead-letters", summary="Failed tasks, newest first", openapi_extra={"parameters": PARAMETERS})
async def dead_letters(request: Request, parts: Parts, who: Who) -> Response:
    """Pages as `GET /tasks`, by the time of their end."""
    query = request.query_params
    wanted, cursor = _wanted(query, PARAMETERS), query.get("cursor")
    start = Mark(wanted.before_ms) if cursor is None else listing.read_cursor(cursor, wanted, who.tenant)
    return await listed(request, parts, who, wanted, start=start, limit=filters.limit_of(query))


@router.get("/dead-letters/{task_id}", summary="A failed task with the history of its attempts")
async def dead_letter(task_id: str, parts: Parts, who: Who) -> Response:
    """When, where and why each attempt ended; the newest 20 before the last one, 32 KiB of them. `409`: it is none."""
    history = await parts.store.history((await parts.snapshots.fresh(task_id, who.tenant)).record.id)
    if history.record.status is not Status.FAILED:
        raise NotDead(history.record.status)
    return _json(letter_view(history))


@router.post("/dead-letters/redrive", summary="Give many failed tasks new attempts")
async def redrive(request: Request, parts: Parts, who: Who) -> Response:
    """Up to 1,000 a request, oldest first: go on with `next_cursor` until it is null. What fails again meanwhile is
    left out. What finds no room stays a dead letter, is counted, and is tried again once all others were. A repeat
    with the same `X-Request-ID` redrives nothing twice; with a filter it goes on with others.
    """
    body = _parsed(request, await request.body())
    sweeper = Sweeper(parts.store, tenant=who.tenant, limits=parts.limits, request_id=who.request_id)
    rate_per_s = body.rate_per_s or 0.0
    try:
        if body.filter is UNSET:
            return _json(await sweeper.redrive_ids(body.ids or [], start_ms=_start_ms(body), rate_per_s=rate_per_s))
        wanted = body.filter.wanted()
        place = await place_of(
            parts.store, "redrive", wanted, who.tenant, None if body.cursor is UNSET else body.cursor
        )
        return _json(await sweeper.redrive(wanted, place, limit=body.limit or MOST, rate_per_s=rate_per_s))
    finally:
        _forget(parts, sweeper)


@router.delete("/dead-letters", summary="Delete failed tasks", openapi_extra={"parameters": PURGE_PARAMETERS})
async def purge(request: Request, parts: Parts, who: Who) -> Response:
    """Up to 1,000 a request, oldest first: go on with `next_cursor` until it is null. Only what had failed when the
    first of these requests came. A repeat goes on with others. Needs a filter, or `all=true`.
    """
    query = request.query_params
    wanted = _wanted(query, PURGE_PARAMETERS)
    if query.get("all") not in (None, "true"):
        raise Problem("bad-request", "`all` is `true`, or not given.")
    if (wanted == Wanted(letters=True)) != ("all" in query):
        raise Problem("bad-request", "Give filters, or `all=true` for really all.")
    limit = _limit_of(query)
    place = await place_of(parts.store, "purge", wanted, who.tenant, query.get("cursor"))
    sweeper = Sweeper(parts.store, tenant=who.tenant, limits=parts.limits, request_id=who.request_id)
    try:
        return _json(await sweeper.purge(wanted, place, limit=limit))
    finally:
        _forget(parts, sweeper)


def _wanted(query: QueryParams, parameters: filters.Parameters) -> Wanted:
    filters.check_names(query, [each["name"] for each in parameters])
    return Wanted(
        letters=True,
        queue=filters.name_of(query, "queue"),
        type=filters.name_of(query, "type"),
        kind=filters.name_of(query, "kind"),
        after_ms=filters.time_ms_of(query, "after"),
        before_ms=filters.time_ms_of(query, "before"),
    )


def _limit_of(query: QueryParams) -> int:
    """As in the body of a redrive."""
    given = query.get("limit", str(MOST))
    if not (given.isascii() and given.isdigit()):
        raise Problem("bad-request", f"`limit` is a number from 1 to {MOST}.")
    limit = int(given[:9])
    if not 1 <= limit <= MOST:
        raise invalid(Fault("#/limit", f"from 1 to {MOST}", "out-of-range"))
    return limit


def _parsed(request: Request, raw: bytes) -> RedriveBody:
    """Raises Problem: it does not say what to redrive, or says it twice."""
    if not is_json(request.headers.get("content-type", "").encode()):
        raise Problem("unsupported-media-type")
    try:
        body = _body(raw)
        json.loads(raw, object_pairs_hook=_unique)
    except msgspec.ValidationError as error:
        raise invalid(fault(str(error))) from None
    except (ValueError, RecursionError) as error:
        raise Problem("invalid-json", f"{error}.") from None
    if (body.ids is UNSET) == (body.filter is UNSET):
        raise invalid(Fault("#/filter", "either `ids` or `filter`", "conflict"))
    if body.ids is not UNSET and len(body.ids) > MOST:
        raise invalid(Fault("#/ids", f"at most {MOST}", "too-large"))
    if body.ids is not UNSET and body.cursor is not UNSET:
        raise invalid(Fault("#/cursor", "goes with `filter`", "conflict"))
    if body.ids is not UNSET and body.limit is not UNSET:
        raise invalid(Fault("#/limit", "goes with `filter`", "conflict"))
    if body.start_at is not UNSET and UNSET in (body.ids, body.rate_per_s):
        raise invalid(Fault("#/start_at", "goes with `ids` and `rate_per_s`", "conflict"))
    return body


def _start_ms(body: RedriveBody) -> int:
    start_ms = 0 if body.start_at is UNSET else filters.unix_ms(body.start_at)
    if start_ms > LATEST_MS:
        raise invalid(Fault("#/start_at", "too far ahead", "out-of-range"))
    return start_ms


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise invalid(Fault("#", f"`{name[:64]}` is given more than once", "duplicate"))


def _forget(parts: Parts, sweeper: Sweeper) -> None:
    """So that the next read of this process sees what was done."""
    for task_id in sweeper.taken:
        parts.snapshots.drop(task_id)


def _json(value: msgspec.Struct) -> Response:
    return Response(encode(value), 200, {"Cache-Control": "no-store"}, "application/json")
