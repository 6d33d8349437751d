"""FastAPI's part: every endpoint but the two hot ones. A route asks the store and shows what it says."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse

from app import listing, readiness
from app.access import join_streams
from app.errors import KINDS, Problem
from app.filters import Wanted
from app.gateway import Gateway
from app.merged import TASKS_MAX, open_merged
from app.reply import CALLER, Caller
from app.snapshots import Snapshot, known_id
from app.status import matches
from app.stream import open_stream
from app.told import From
from app.view import encode
from taskgate.checks import lines
from taskgate.contract.models import Mark
from taskgate.contract.states import Status
from taskgate.metrics import CONTENT_TYPE

router = APIRouter()


async def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


async def _caller(request: Request) -> Caller:
    caller: Caller = request.scope[CALLER]
    return caller


async def _last_seen(
    request: Request,
    last_event_id: Annotated[
        str | None, Query(description="as the header Last-Event-ID, for a fresh EventSource")
    ] = None,
    after: Annotated[str | None, Query(include_in_schema=False)] = None,
) -> str | None:
    return request.headers.get("last-event-id") or last_event_id or after or None


Parts = Annotated[Gateway, Depends(_gateway)]
Who = Annotated[Caller, Depends(_caller)]
Seen = Annotated[str | None, Depends(_last_seen)]
Start = Annotated[
    Literal["start", "now"] | None,
    Query(
        alias="from",
        description="what of the past follows the snapshot. `start`: every kept event, also `status` and `progress` "
        "of which it shows the outcome; `now`: nothing; not given: `custom`, `log` and whatever else it cannot show",
    ),
]


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = value if isinstance(value, bytes) else encode(value)
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def _task(snapshot: Snapshot, status: int = 200) -> Response:
    return _json(snapshot.body, status, {"X-Task-ID": snapshot.record.id})


@router.get(
    "/tasks",
    tags=["tasks"],
    summary="Your tasks, newest first",
    openapi_extra={"parameters": listing.PARAMETERS},
)
async def tasks(request: Request, parts: Parts, who: Who) -> Response:
    """Pages by `next_cursor`, which is null at the end, or the `Link` header.

    A page looks at up to 1,000 tasks, whatever the filters: it may be short, or empty, with more to come.
    """
    wanted, limit, start = listing.parse(request.query_params, who.tenant)
    return await listed(request, parts, who, wanted, start=start, limit=limit)


async def listed(request: Request, parts: Gateway, who: Caller, wanted: Wanted, *, start: Mark, limit: int) -> Response:
    """A page, and where the next one is."""
    found, following = await listing.find(parts.store, who.tenant, wanted, start=start, limit=limit)
    items = [msgspec.Raw(await parts.snapshots.json(record)) for record in found]
    if following is None:
        return _json({"items": items, "next_cursor": None})
    cursor = listing.cursor_of(following, wanted, who.tenant)
    url = request.url.include_query_params(cursor=cursor)
    return _json({"items": items, "next_cursor": cursor}, headers={"Link": f'<{url.path}?{url.query}>; rel="next"'})


@router.delete("/tasks/{task_id}", tags=["tasks"], summary="Delete a task that has ended", status_code=204)
async def delete(task_id: str, parts: Parts, who: Who) -> Response:
    """With its result, events and output; its idempotency key is free again. `409` while it has not ended."""
    await parts.snapshots.fresh(task_id, who.tenant)
    await parts.store.delete(task_id, tenant=who.tenant)
    await parts.snapshots.forget(task_id)
    return Response(status_code=204)


@router.get("/tasks/{task_id}/result", tags=["tasks"], summary="The result, as the handler returned it")
async def result(
    task_id: str,
    parts: Parts,
    who: Who,
    if_none_match: Annotated[str | None, Header(description="the ETag of a result that you have")] = None,
) -> Response:
    """JSON. `204` when the task ended without one, `409` while it has not ended, `410` when it was dropped since."""
    snapshot = await parts.snapshots.fresh(task_id, who.tenant)
    etag = f'W/"{snapshot.record.version}"'
    caching = {"Cache-Control": "private, max-age=60", "ETag": etag}
    if if_none_match is not None and snapshot.record.has_result and matches(if_none_match.encode(), etag.encode()):
        return Response(status_code=304, headers={**caching, "X-Task-Status": snapshot.record.status})
    status, found = await parts.snapshots.result(task_id)
    if not found:
        return Response(status_code=204, headers={"Cache-Control": "no-store", "X-Task-Status": status})
    return _json(found, headers={**caching, "X-Task-Status": status})


@router.get("/tasks/{task_id}/events", tags=["tasks"], summary="Follow a task (server-sent events)")
async def events(task_id: str, parts: Parts, who: Who, seen: Seen, start: Start = None) -> Response:
    """`snapshot` first: the whole task now. Then what that cannot show, from the oldest kept: `custom` (own events)
    and `log` (with `from=start` every kept event); then everything as it happens, `status` and `progress` too, and
    `end` with the whole task. A `snapshot` comes again where health or stage have changed.

    `stopping` and `killed` tell of the signals that a running task is sent, `stalled` where it was when it stalled,
    `skipped` of a task that it has submitted and that was left out, since another with the same `unique_key` lives.
    `Last-Event-ID` resumes exactly after that event; `gap` says that some may be missing. `204`: the end was seen.
    """
    stream = await open_stream(
        parts.hub, parts.store, task_id=task_id, tenant=who.tenant, seen=seen, start=From(start or "")
    )
    join_streams(who.grant, stream)
    return stream or Response(status_code=204, headers={"Cache-Control": "no-store"})


@router.get("/events", tags=["tasks"], summary="Follow many tasks on one stream (server-sent events)")
async def many_events(
    parts: Parts,
    who: Who,
    seen: Seen,
    task: Annotated[list[str] | None, Query(description=f"an id; up to {TASKS_MAX} times")] = None,
    start: Start = None,
) -> Response:
    """The blocks of `/tasks/{task_id}/events`, each with its `task_id`, in the order of time; an `end` for each task.

    The stream ends with the last of them. Resume with the same tasks: what happened in the millisecond of the id comes
    again, so drop what has the `task_id` and `seq` of one that you have. A task that is deleted meanwhile is told as
    `gone`, and the others go on; `404` is for when all are, or when one is not there at the start. `204`: all ends
    were seen.
    """
    task_ids = task or []
    if not 0 < len(task_ids) <= TASKS_MAX:
        raise Problem("bad-request", f"`task` is given 1 to {TASKS_MAX} times.")
    stream = await open_merged(
        parts.hub, parts.store, task_ids=task_ids, tenant=who.tenant, seen=seen, start=From(start or "")
    )
    join_streams(who.grant, stream)
    return stream or Response(status_code=204, headers={"Cache-Control": "no-store"})


@router.post("/tasks/{task_id}/cancel", tags=["tasks"], summary="Cancel")
async def cancel(task_id: str, parts: Parts, who: Who) -> Response:
    """`200`: it is cancelled (what waits is so at once). `202`: it runs, and will have been stopped soon."""
    status = await parts.store.cancel(known_id(task_id), tenant=who.tenant)
    snapshot = await parts.snapshots.fresh(task_id, who.tenant)
    return _task(snapshot, 200 if status is Status.CANCELED else 202)


@router.post("/tasks/{task_id}/redrive", tags=["dead letters"], summary="Give a failed task new attempts")
async def redrive(task_id: str, parts: Parts, who: Who) -> Response:
    """Repeating the request with the same `X-Request-ID` is no second redrive."""
    await parts.store.redrive(known_id(task_id), request_id=who.request_id, limits=parts.limits, tenant=who.tenant)
    return _task(await parts.snapshots.fresh(task_id, who.tenant), 202)


@router.get("/tasks/{task_id}/stack", tags=["tasks"], summary="Where a running task is: its live Python stack")
async def stack(task_id: str, parts: Parts, who: Who) -> Response:
    """Without the task's help; it costs it one signal, at most five times a second.

    `threads` is null where there is none, and `reason` says why. `409`: it does not run. `503`: nobody answers.
    """
    return _json(await parts.stacks.of(task_id, who.tenant))


@router.get("/task-types", tags=["service"], summary="What can be submitted")
async def task_types(parts: Parts) -> Response:
    """Each type with the JSON schema of its payload; several schemas of one type while workers are replaced."""
    found = await parts.types.listed()
    items = [{**msgspec.structs.asdict(variant.info), "served": variant.served} for variant in found]
    return _json({"items": items})


@router.get("/workers", tags=["service"], summary="Supervisors and their children")
async def workers(parts: Parts, who: Who) -> Response:
    """`alive`: it has beaten within its lease. `whole`: all its children and its guard are there.

    `tasks` of children are left out where tenants share the service.
    """
    now_ms, apart = await parts.store.now_ms(), parts.is_apart(who)
    found = await parts.store.workers()
    return _json({"items": [readiness.view(worker, now_ms, with_tasks=not apart) for worker in found]})


@router.get("/queues", tags=["service"], summary="What waits, runs and died; limits and shares")
async def queues(
    parts: Parts,
    who: Who,
    queue: Annotated[str | None, Query(description="only that one")] = None,
) -> Response:
    """Those with most waiting first, as of at most a second ago; where reading takes over 0.1 s, it is good for ten
    times as long, up to 30 s. Queues that the policy or a supervisor names are all there, others while there are no
    more than 128 in all (`more_queues` counts the rest, each of which can be asked for by name).
    `limits` are those in force, with what is used of each (tasks, bytes, seconds); `estimated_wait_ms` is how long what
    waits now takes to leave at the rate measured.
    `oldest_age_ms`: since the creation of the oldest queued task. `oldest_age_at_least`: there may be an older one, as
    some wait for a concurrency key, or of more tenants, or behind more tasks, than are looked at.

    `tenants`: the 20 of whom most is ready, and their share of what runs next. Where keys or TASKGATE_TENANT_HEADER
    separate tenants, a caller sees itself there, and of the queues that the service has not named only those where
    tasks of its own are ready to start: not where all are scheduled, running, kept back by a key, or dead. `tenant`:
    the caller.
    """
    return _json(await parts.queues.view(who.tenant, queue, apart=parts.is_apart(who)))


@router.get("/livez", tags=["service"], summary="Whether this process works")
@router.get("/healthz", include_in_schema=False)
async def livez() -> Response:
    return _json({"status": "ok"})


@router.get("/readyz", tags=["service"], summary="Whether tasks are accepted, kept and worked on")
async def readyz(
    parts: Parts, verbose: Annotated[str | None, Query(description="a line of text for each check")] = None
) -> Response:
    """`503` when any check is not ok; each is named with what was found."""
    checks = await parts.readiness.checks()
    ready = all(check.ok for check in checks.values())
    status = 200 if ready else 503
    if verbose is not None:
        return Response(lines(checks), status, {"Cache-Control": "no-store"}, "text/plain; charset=utf-8")
    return _json({"status": "ready" if ready else "not ready", "checks": checks}, status)


@router.get(
    "/metrics",
    tags=["service"],
    summary="What is measured, for Prometheus",
    response_class=PlainTextResponse,
    responses={200: {"description": "Prometheus' text format", "content": {"text/plain": {}}}},
)
async def metrics(parts: Parts) -> Response:
    """Counters of all processes of this gateway, and its queues as Redis has them; docs/observe.md explains each."""
    return Response(await parts.metrics.text(parts), headers={"Cache-Control": "no-store"}, media_type=CONTENT_TYPE)


@router.get("/problems/{slug}", tags=["service"], summary="What a problem means")
async def problem(slug: str) -> Response:
    kind = KINDS.get(slug)
    if kind is None:
        raise Problem("not-found")
    return PlainTextResponse(f"{kind.title} ({kind.status})\n\n{kind.meaning}\n")
