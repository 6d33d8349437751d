"""The calls that are one request and its answer, as steps for either driver."""

import json
import math
import random
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, cast

from taskgate.client.answers import (
    Rows,
    body_of,
    check,
    items_of,
    logs_of,
    purged_of,
    redriven_of,
    task_of,
    tasks_of,
)
from taskgate.client.errors import NotFound, ServiceError, StillRunning, Unsendable, not_succeeded
from taskgate.client.models import (
    FINAL,
    ApiKey,
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
from taskgate.client.patience import Patience, may_pass
from taskgate.client.steps import Answer, Params, Pause, Send, Steps
from taskgate.contract.ids import is_task_id

OnWait = Callable[[ServiceError, float], None]

_JSON_BODY = {"Content-Type": "application/json"}

LONG_POLL_S = 30
"""Below what proxies and load balancers cut off."""
_LAST_LOOK_S = 0.5
"""A last look, when the time is over, may take so long."""


class Calls:
    """What both clients can ask for. Only what a repeat does not carry further than was asked is sent again."""

    def __init__(self, *, patience_s: float, on_wait: OnWait) -> None:
        self._patience_s = patience_s
        self.on_wait = on_wait

    def patience(self) -> Patience:
        return Patience(self._patience_s)

    def submit(
        self, task_type: str, payload: Any, key: str | None, prefer_wait_s: int, options: TaskOptions
    ) -> Steps[Task]:
        envelope = _json({"type": task_type, **options})
        body = envelope[:-1] + b',"payload":' + (payload if isinstance(payload, bytes) else _json(payload)) + b"}"
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4()) if key is None else key}
        if prefer_wait_s:
            headers["Prefer"] = f"wait={prefer_wait_s}"
        request = Send("POST", "/tasks", headers=headers, content=body, held_s=prefer_wait_s)
        return task_of((yield from self.patiently(request)))

    def get(self, task_id: str, *, fresh: bool) -> Steps[Task]:
        headers = {"Cache-Control": "no-cache"} if fresh else {}
        return task_of((yield Send("GET", path_of(task_id), headers=headers)))

    def result(self, task_id: str) -> Steps[bytes | None]:
        answer: Answer = yield Send("GET", path_of(task_id, "result"))
        check(answer)
        return None if answer.status == 204 else answer.body

    def cancel(self, task_id: str) -> Steps[Task]:
        return task_of((yield Send("POST", path_of(task_id, "cancel"))))

    def redrive(self, task_id: str) -> Steps[Task]:
        return task_of((yield Send("POST", path_of(task_id, "redrive"))))

    def delete(self, task_id: str) -> Steps[None]:
        check((yield Send("DELETE", path_of(task_id))))

    def stack(self, task_id: str) -> Steps[Stack]:
        return cast("Stack", body_of((yield Send("GET", path_of(task_id, "stack")))))

    def logs(self, task_id: str, after: str | None, limit: int | None) -> Steps[LogPage]:
        params = _params(after=after, limit=limit)
        return logs_of((yield Send("GET", path_of(task_id, "logs"), params)))

    def list(self, filters: TaskFilters, limit: int, cursor: str | None) -> Steps[TaskPage]:
        plain: dict[str, Any] = {**filters}
        metadata = plain.pop("metadata", None) or {}
        params = _params(**plain, limit=limit, cursor=cursor)
        params += [(f"metadata.{name}", value) for name, value in metadata.items()]
        return tasks_of((yield Send("GET", "/tasks", params)))

    def workers(self) -> Steps[Rows]:
        return items_of((yield Send("GET", "/workers")))

    def queues(self, queue: str | None) -> Steps[Queues]:
        return cast("Queues", body_of((yield from self.patiently(Send("GET", "/queues", _params(queue=queue))))))

    def keys(self) -> Steps[Sequence[ApiKey]]:
        return cast("Sequence[ApiKey]", items_of((yield Send("GET", "/keys"))))

    def create_key(self, name: str, scopes: Sequence[str], options: KeyOptions) -> Steps[NewApiKey]:
        body = _json({"name": name, "scopes": list(scopes), **options})
        return cast("NewApiKey", body_of((yield Send("POST", "/keys", headers=_JSON_BODY, content=body))))

    def rotate_key(self, key_id: str, grace_s: int) -> Steps[NewApiKey]:
        path, body = f"{key_path_of(key_id)}/rotate", _json({"grace_s": grace_s})
        return cast("NewApiKey", body_of((yield Send("POST", path, headers=_JSON_BODY, content=body))))

    def revoke_key(self, key_id: str) -> Steps[None]:
        check((yield Send("DELETE", key_path_of(key_id))))

    def stream_token(self, task_id: str) -> Steps[StreamToken]:
        return cast("StreamToken", body_of((yield Send("POST", path_of(task_id, "stream-tokens")))))

    def dead_letters(self, filters: LetterFilters, limit: int, cursor: str | None) -> Steps[TaskPage]:
        params = _params(**cast("dict[str, str]", filters), limit=limit, cursor=cursor)
        return tasks_of((yield Send("GET", "/dead-letters", params)))

    def dead_letter(self, task_id: str) -> Steps[Letter]:
        return cast("Letter", body_of((yield Send("GET", path_of(task_id, below="/dead-letters")))))

    def redrive_letters(
        self,
        task_ids: Sequence[str] | None,
        filters: LetterFilters,
        everything: bool,
        limit: int | None,
        rate_per_s: float | None,
        cursor: str | None,
        start_at: str | None,
    ) -> Steps[Redriven]:
        """Repeated, a filter finds the next ones: past a limit, and in a second row beside that of a rate."""
        _check_choice(task_ids, filters, everything)
        if task_ids is not None and (limit is not None or cursor is not None):
            raise ValueError("limit and cursor go with filters or everything=True")
        if start_at is not None and (task_ids is None or rate_per_s is None):
            raise ValueError("start_at goes with task ids and rate_per_s")
        which = {"filter": filters} if task_ids is None else {"ids": list(task_ids)}
        more = {"limit": limit, "rate_per_s": rate_per_s, "cursor": cursor, "start_at": start_at}
        body = _json(which | {name: value for name, value in more.items() if value is not None})
        headers = {"Content-Type": "application/json", "X-Request-ID": str(uuid.uuid4())}
        request = Send("POST", "/dead-letters/redrive", headers=headers, content=body)
        if task_ids is None and (limit is not None or rate_per_s is not None):
            return redriven_of((yield request))
        return redriven_of((yield from self.patiently(request)))

    def purge_letters(
        self, filters: LetterFilters, everything: bool, limit: int | None, cursor: str | None
    ) -> Steps[Purged]:
        _check_choice(None, filters, everything)
        given = cast("dict[str, str]", filters)
        params = _params(**given, all="true" if everything else None, limit=limit, cursor=cursor)
        request = Send("DELETE", "/dead-letters", params)
        if limit is not None:  # repeated, it would delete as many others
            return purged_of((yield request))
        return purged_of((yield from self.patiently(request)))

    def poll(self, task_id: str, *, tag: str | None, hold_s: int) -> Steps[tuple[Task | None, str | None]]:
        """The task as it ended, or is where `tag` says else, or as it is `hold_s` later; its tag. None: not changed.

        Tried again as the client's patience allows, since a read has no second effect.
        """
        answer = yield from self.patiently(_look(task_id, hold_s, tag=tag))
        return None if answer.status == 304 else task_of(answer), answer.headers.get("etag", tag)

    def end_of(self, task_id: str, timeout_s: float) -> Steps[Task]:
        """The task once it has ended, by polls that the service holds: a stream could not be left in time."""
        deadline = time.monotonic() + timeout_s
        task: Task = {"id": task_id}
        while True:
            asked = time.monotonic()
            hold_s = int(max(0.0, min(deadline - asked - _LAST_LOOK_S, LONG_POLL_S)))
            request = _look(task_id, hold_s, until=max(deadline, asked + _LAST_LOOK_S))
            try:
                task = task_of((yield from self.patiently(request)))
            except ServiceError as error:
                if may_pass(error) and time.monotonic() >= deadline:
                    raise StillRunning(task, error) from error
                raise
            if task.get("status") in FINAL:
                return task
            if time.monotonic() >= deadline:
                raise StillRunning(task)
            pause_s = asked + pace_s(task) - time.monotonic()
            yield Pause(max(0.0, min(pause_s, deadline - time.monotonic())))

    def patiently(self, request: Send) -> Steps[Answer]:
        """Send it until it is answered otherwise than by what may pass."""
        patience = self.patience()
        while True:
            try:
                answer: Answer = yield request
                if answer.status != 304:
                    check(answer)
                return answer
            except ServiceError as error:
                delay_s = patience.delay_s(error)
                left_s = request.until - time.monotonic()
                if delay_s >= left_s:
                    yield Pause(max(0.0, left_s))
                    raise
                self.on_wait(error, delay_s)
            yield Pause(delay_s)


def checked(task: Task, *, check: bool) -> Task:
    """Raises NotSucceeded if asked to."""
    if check and task.get("status") != "succeeded":
        raise not_succeeded(task)
    return task


def pace_s(task: Task) -> float:
    """When to ask again, as the service says, spread by a fifth."""
    return (task.get("poll_after_ms") or 500) / 1000 * random.uniform(1.0, 1.2)


def key_path_of(key_id: str) -> str:
    """Raises NotFound: it is no key's id, and might lead elsewhere."""
    if not re.fullmatch(r"[0-9a-f]{16}", key_id):
        raise NotFound(404, {"type": "/problems/not-found", "title": "Not found", "detail": "That is no id of a key."})
    return f"/keys/{key_id}"


def path_of(task_id: str, *more: str, below: str = "/tasks") -> str:
    """Raises NotFound: it is no task id, and might lead elsewhere."""
    if not is_task_id(task_id):
        raise NotFound(
            404, {"type": "/problems/not-found", "title": "Not found", "detail": f"{task_id!r} is no task id."}
        )
    return "/".join((below, task_id, *more))


def _look(task_id: str, hold_s: int, *, tag: str | None = None, until: float = math.inf) -> Send:
    """A read that the service may hold for `hold_s` until the task has ended, or is not where `tag` says."""
    params = _params(wait=hold_s or None)
    headers = {} if tag is None else {"If-None-Match": tag}
    return Send("GET", path_of(task_id), params, headers, held_s=hold_s, until=until)


def _params(**given: str | int | None) -> Params:
    return [(name, str(value)) for name, value in given.items() if value is not None]


def _check_choice(task_ids: Sequence[str] | None, filters: LetterFilters, everything: bool) -> None:
    """A call that names nothing, or was to, means everything only where it says so."""
    if (task_ids is not None) + bool(filters) + everything != 1:
        raise ValueError("say which dead letters, in one way; all of yours: everything=True")


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Unsendable(f"not JSON: {error}") from error
