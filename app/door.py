"""The door: what every request needs, in one plain ASGI function; then a hot endpoint, or FastAPI for the rest."""

import itertools
import os
import re
import time
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import parse_qs

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import Access, unauthorized
from app.access_log import log_access
from app.body import Bodies, ClientGone, Hold, Whole, read_body
from app.cors import Cors
from app.errors import Problem, problem_of
from app.exchange import EXCHANGE, Exchange
from app.gateway import Gateway
from app.grants import OPEN, PUBLIC, Grant
from app.observers import FACTS, NO_ROUTE, OBSERVED, SHOWN_CHARS, Observed, Observer, facts
from app.reply import CALLER, LATER, PROTECTION, Caller, Headers, Reply, length
from app.scopes import check_scope, is_public
from taskgate.contract import ids
from taskgate.contract.errors import TaskgateError
from taskgate.network import is_site

logger = structlog.get_logger()

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_DRAINING_RETRY_S = 1
_READS = ("GET", "HEAD")
_LISTS = (b"prefer", b"if-none-match", b"cache-control", b"content-encoding", b"tracestate")
"""Headers that are lists and may come in several lines, of which a dict keeps the last."""

_SINGLE = (b"authorization", b"content-type", b"host")
"""Headers that two readers could understand in two ways when there are two of them."""


class Door:
    """The whole gateway as an ASGI application."""

    def __init__(self, gateway: Gateway, api: ASGIApp) -> None:
        self.gateway = gateway
        self._api = api
        settings = gateway.settings
        self._access: Access | None = gateway.access
        self._by_any_name = self._access is not None or settings.insecure
        self._tenant_header = None if settings.tenant_header is None else settings.tenant_header.lower().encode()
        self._bodies = Bodies(int(settings.max_body_bytes))
        self._single = _SINGLE if self._tenant_header is None else (*_SINGLE, self._tenant_header)
        self._cors: Cors | None = None
        if settings.cors_origins:
            self._cors = Cors(settings.cors_origins, tenant_header=settings.tenant_header)
        self._ids = f"{os.urandom(6).hex()}-%x".__mod__
        self._count = itertools.count(1)
        self.observers: list[Observer] = [gateway.metrics.count_request, *([log_access] if settings.access_log else [])]
        self._traces = gateway.traces
        if self._traces is not None:
            self.observers.append(self._traces)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._api(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            request_id = given.decode()
        else:
            request_id = self._ids(next(self._count))
        observed = scope[OBSERVED] = Observed(scope, request_id, time.perf_counter())
        if self._traces is not None:
            self._traces.begin(observed, headers)
        try:
            observed.status = await self._serve(observed, headers, receive, send) or observed.status
        except Exception:
            scope[FACTS] = facts(scope)
            raise
        finally:
            del scope[OBSERVED]  # requests leave no cycles
            seconds = time.perf_counter() - observed.started
            for observer in self.observers:
                observer(observed, seconds)

    async def _serve(self, observed: Observed, headers: dict[bytes, bytes], receive: Receive, send: Send) -> int:
        """Answer; the status, 0 where the door does not know it."""
        scope, request_id = observed.scope, observed.request_id
        try:
            reply = await self._answer(observed, headers, receive, send)
        except Problem as problem:
            reply = self._refusal(problem, request_id, scope)
        except TaskgateError as error:
            reply = self._refusal(problem_of(error), request_id, scope)
        except ClientGone:
            return 0
        except Exception:
            about = {"request_id": request_id} | facts(scope)
            logger.exception("request failed", method=scope["method"], path=scope["path"][:SHOWN_CHARS], **about)
            reply = self._refusal(Problem("internal-error"), request_id, scope)
        if reply is None:
            return 0
        status, lines, body = reply
        lines = [*lines, *self._added(observed, headers)]
        exchange: Exchange | None = scope.get(EXCHANGE)
        if exchange is not None and exchange.respond(status, lines, body):
            return status
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": body})
        return status

    async def _answer(
        self, observed: Observed, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> Reply | None:
        """The reply to send; None when FastAPI has sent one."""
        scope, request_id = observed.scope, observed.request_id
        path: str = scope["path"]
        method: str = scope["method"]
        if len(headers) != len(scope["headers"]):
            self._check_lines(headers, scope["headers"])
        if not self._by_any_name and is_site(headers.get(b"host", b"")):
            raise Problem("misdirected-request")
        if method == "OPTIONS" and self._cors is not None and (reply := self._cors.preflight(headers)) is not None:
            return reply
        authorization = headers.get(b"authorization")
        grant = OPEN if self._access is None else self._access.known(authorization)
        if authorization is None and path.endswith("/events") and b"token=" in scope["query_string"]:
            caller = await self._by_token(path, scope["query_string"], request_id)
        else:
            if grant is None:
                grant = await self._granted(path, authorization)
            tenant = grant.tenant if self._tenant_header is None else self._tenant(grant, headers, path)
            caller = Caller(tenant, request_id, grant)
        observed.tenant = caller.tenant
        if path == "/tasks" and method not in _READS:
            observed.route = path
            if method != "POST":
                raise Problem("method-not-allowed", headers={"Allow": "GET, HEAD, POST"})
            check_scope(caller.grant.scopes, "tasks:write")
            self._check_serving()
            hold = Hold(self._bodies)
            try:
                exchange: Exchange | None = scope.get(EXCHANGE)
                arrived = None if exchange is None else exchange.whole_body()
                body = await read_body(receive, headers, hold, arrived)
                reply = await self.gateway.submit(body, caller, headers, receive)
                observed.task_id = dict(reply.headers)[b"x-task-id"].decode()
                return reply
            except Problem as problem:
                self.gateway.metrics.rejected.add(problem.members.get("limit") or problem.slug)
                raise
            except (ClientGone, TaskgateError):
                raise
            except Exception:
                self.gateway.metrics.rejected.add("internal-error")
                raise
            finally:
                hold.end()
        if path.startswith("/tasks/") and "/" not in (task_id := path[7:]) and method != "DELETE":
            observed.route, observed.task_id = "/tasks/{task_id}", task_id
            if method not in _READS:
                raise Problem("method-not-allowed", headers={"Allow": "GET, HEAD, DELETE"})
            check_scope(caller.grant.scopes, "tasks:read")
            return await self.gateway.status(task_id, caller, headers, scope["query_string"], receive)
        await self._pass_on(observed, caller, headers, receive, send)
        return None

    def _added(self, observed: Observed, headers: dict[bytes, bytes]) -> Headers:
        """What every answer carries; our own server adds PROTECTION itself, which costs less."""
        added = [(b"x-request-id", observed.request_id.encode())]
        if EXCHANGE not in observed.scope:
            added += PROTECTION
        if self._cors is not None:
            added += self._cors.lines(headers.get(b"origin"))
        if self._traces is not None and (trace := self._traces.response(observed)):
            added.append((b"traceresponse", trace))
        return added

    async def _pass_on(
        self, observed: Observed, caller: Caller, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        started = False
        scope = observed.scope
        common = self._added(observed, headers)

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                observed.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *common]}
            await send(message)

        later: list[ASGIApp] = []
        inner: MutableMapping[str, Any] = {**scope, CALLER: caller, LATER: later}
        if scope["method"] == "HEAD" and not scope["path"].endswith("/events"):
            inner["method"] = "GET"  # the server keeps the body back: it sees its own scope
        if scope["path"].endswith("/redrive"):
            self._check_serving()
        whole = Whole(receive, headers, self._bodies)
        try:
            await self._api(inner, whole, send_with_headers)
            for app in later:
                await app(scope, receive, send_with_headers)
        except Exception:
            if not started:
                raise
            path = scope["path"][:SHOWN_CHARS]
            logger.exception(
                "request failed after its answer began", path=path, request_id=caller.request_id, tenant=caller.tenant
            )
        finally:
            whole.end()
            observed.route = getattr(inner.get("route"), "path_format", NO_ROUTE)
            observed.task_id = inner.get("path_params", {}).get("task_id", "")

    def _check_lines(self, headers: dict[bytes, bytes], lines: list[tuple[bytes, bytes]]) -> None:
        """Put lists together, and refuse what may stand there once only: a dict keeps the last line of each name."""
        names = [name for name, _ in lines]
        for name in headers.keys() & _LISTS:
            headers[name] = b", ".join(value for each, value in lines if each == name)
        if names.count(b"traceparent") > 1:
            del headers[b"traceparent"]  # which of them it is part of, nobody knows
        if names.count(b"idempotency-key") > 1:
            raise Problem("idempotency-key-invalid", "More than one Idempotency-Key header.")
        for name in self._single:
            if names.count(name) > 1:
                raise Problem("bad-request", f"More than one {name.decode().title()} header.")

    async def _granted(self, path: str, authorization: bytes | None) -> Grant:
        """To whom no key is remembered for."""
        if self._access is None or is_public(path):
            return PUBLIC
        return await self._access.grant(authorization)

    async def _by_token(self, path: str, query: bytes, request_id: str) -> Caller:
        """Of who shows a stream token for each task that it wants to follow, instead of a key."""
        given = parse_qs(query.decode("latin-1"), keep_blank_values=True)
        tasks = given.get("task", []) if path == "/events" else [path.removeprefix("/tasks/").removesuffix("/events")]
        tokens = given.get("token", [])
        pairs = zip(tasks, tokens, strict=False)
        said = {await self.gateway.stream_tokens.check(task_id, token) for task_id, token in pairs}
        told = said.pop() if len(tasks) == len(tokens) and len(said) == 1 else None
        if told is None:
            raise unauthorized()
        grant: Grant | None = OPEN
        if self._access is not None:
            grant = await self._access.by_id(told.key_id) if told.key_id else self._access.bootstrap
        if grant is None:
            raise unauthorized()
        return Caller(told.tenant, request_id, grant)

    def _tenant(self, grant: Grant, headers: dict[bytes, bytes], path: str) -> str:
        """A key decides; the header is for who needs none, and for the proxy that has TASKGATE_API_KEY itself."""
        if self._tenant_header is None or (given := headers.get(self._tenant_header)) is None:
            return grant.tenant
        if is_public(path):
            return grant.tenant  # a proxy names it for probes, too, to which it means nothing
        tenant = given.decode("latin-1")
        if not ids.is_name(tenant):
            raise Problem("bad-request", f"The tenant has {ids.NAME_RULE}")
        if tenant != grant.tenant and not grant.names_tenant:
            raise Problem("forbidden", "The key is of another tenant than the one named.")
        return tenant

    def _check_serving(self) -> None:
        if self.gateway.draining:
            raise Problem("service-draining", retry_after_s=_DRAINING_RETRY_S)

    def refuse(self, problem: Problem) -> Reply:
        """The answer to what never became a request."""
        request_id = self._ids(next(self._count))
        reply = self._refusal(problem, request_id)
        return reply._replace(headers=[*reply.headers, (b"x-request-id", request_id.encode())])

    def _refusal(self, problem: Problem, request_id: str, scope: Scope | None = None) -> Reply:
        self.gateway.refusals.note(problem, request_id, scope)
        body = problem.body(request_id)
        return Reply(problem.status, [*problem.raw_headers(), length(body)], body)
