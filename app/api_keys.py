"""`/keys`: making, listing, replacing and revoking API keys; and stream tokens, which come of one."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from msgspec import UNSET, Meta, UnsetType

from app.access import unauthorized
from app.envelope import fault, invalid
from app.errors import Fault, Problem
from app.gateway import Gateway
from app.reply import Caller
from app.routes import Parts, Who
from app.submit import is_json
from app.view import at, encode
from taskgate.contract.api_keys import MOST, MOST_OF_TENANT, ApiKey, marks_of, may_no_more, new_key
from taskgate.contract.errors import KeyNotFound
from taskgate.contract.ids import NAME_RULE, is_name
from taskgate.contract.key_store import KeyStore, KnownKey
from taskgate.contract.scopes import SCOPES, Scope

router = APIRouter()
T = TypeVar("T")

_YEAR_S = 366 * 86_400
_TEXT = r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,100}\Z"


class KeyBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a new key may do. Limits that are not given are those of the caller's key."""

    name: Annotated[str, Meta(pattern=_TEXT)]
    """For people."""
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=16)]
    tenant: str | UnsetType = UNSET
    """Whose tasks it is about; if not given, that of the caller's key."""
    rate_per_s: Annotated[float, Meta(ge=0.01, le=1_000_000)] | UnsetType = UNSET
    """Submissions a second, once `burst` is used up."""
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    """If not given, what the rate allows in a second, at least 1."""
    streams: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    """Event streams at once, of each gateway process."""
    expires_in_s: Annotated[int, Meta(ge=1, le=100 * _YEAR_S)] | UnsetType = UNSET


class RotateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How long the old key is still good."""

    grace_s: Annotated[int, Meta(ge=0, le=_YEAR_S)] = 0


class KeyView(msgspec.Struct, kw_only=True):
    """A key, which itself is not kept."""

    id: str
    name: str
    hint: str
    """Its last four characters."""
    tenant: str
    scopes: list[str]
    rate_per_s: float | None
    burst: int | None
    streams: int | None
    created_at: datetime
    expires_at: datetime | None
    replaced_by: str | None
    """Id of the key that was made of it."""
    last_used_at: datetime | None
    """To the minute."""


class NewKeyView(KeyView, kw_only=True):
    """Shown once."""

    key: str


class KeysView(msgspec.Struct):
    """The oldest first."""

    items: list[KeyView]


class StreamTokenView(msgspec.Struct):
    """For `?token=`."""

    token: str
    expires_at: datetime


_key_body = msgspec.json.Decoder(KeyBody).decode
_rotate_body = msgspec.json.Decoder(RotateBody).decode


async def _store(parts: Parts) -> KeyStore:
    if parts.access is None:
        raise Problem("keys-off")  # they would protect nothing
    return parts.keys


Keys = Annotated[KeyStore, Depends(_store)]


@router.get("/keys", tags=["keys"], summary="API keys")
async def keys(store: Keys, who: Who) -> Response:
    """With TASKGATE_API_KEY those of all tenants, with another key those of its own.

    Those that have ended are there for a day more, while there is room.
    """
    found = [known for known in await store.list_keys() if _may(who, known.key)]
    return _json(KeysView([_view(known) for known in found]))


@router.post("/keys", tags=["keys"], summary="Make an API key", status_code=201)
async def create(request: Request, parts: Parts, store: Keys, who: Who) -> Response:
    """The key is shown in this answer, and never again. No key makes one that may more than itself."""
    body = await _body(request, _key_body)
    mine, now_ms = await _own(parts, who)
    tenant = mine.tenant if body.tenant is UNSET else body.tenant
    if not is_name(tenant):
        raise invalid(Fault("#/tenant", f"names have {NAME_RULE}", "pattern"))
    if body.burst is not UNSET and body.rate_per_s is UNSET:
        raise invalid(Fault("#/burst", "goes with `rate_per_s`", "conflict"))
    rate_per_s = mine.rate_per_s if body.rate_per_s is UNSET else body.rate_per_s
    secret = new_key()
    key = ApiKey(
        **marks_of(secret),
        name=body.name,
        tenant=tenant,
        scopes=sorted(set(body.scopes)),
        rate_per_s=rate_per_s,
        burst=_burst(rate_per_s, mine) if body.burst is UNSET else body.burst,
        streams=mine.streams if body.streams is UNSET else body.streams,
        created_ms=now_ms,
        expires_ms=mine.expires_ms if body.expires_in_s is UNSET else now_ms + body.expires_in_s * 1000,
    )
    _check_may(who, mine, key)
    await store.keep_key(key, most_of_tenant=_most_of_tenant(who))
    return _json(_new_view(key, secret), 201)


@router.post("/keys/{key_id}/rotate", tags=["keys"], summary="Replace an API key", status_code=201)
async def rotate(request: Request, key_id: str, parts: Parts, store: Keys, who: Who) -> Response:
    """The new one may what the old one may, which is still good for `grace_s`. It has an id, and a rate, of its own.

    A key is replaced once: `409` names its successor, of which another comes in turn.
    """
    body = await _body(request, _rotate_body)
    mine, now_ms = await _own(parts, who)
    old = await _known(store, who, key_id)
    if old.replaced_by:
        raise Problem("not-rotatable", f"The key was replaced by {old.replaced_by}: rotate or revoke that one.")
    if 0 < old.expires_ms <= now_ms:
        raise Problem("not-rotatable", "The time of the key is over: make another.")
    secret = new_key()
    new = msgspec.structs.replace(old, **marks_of(secret), created_ms=now_ms)
    _check_may(who, mine, new)
    ends_ms = now_ms + body.grace_s * 1000
    await store.replace_key(
        old, new=new, expires_ms=min(ends_ms, old.expires_ms or ends_ms), most_of_tenant=_most_of_tenant(who)
    )
    return _json(_new_view(new, secret), 201)


@router.delete("/keys/{key_id}", tags=["keys"], summary="Revoke an API key", status_code=204)
async def revoke(key_id: str, store: Keys, who: Who) -> Response:
    """From now on; its open streams, and requests that wait, end."""
    await _known(store, who, key_id)
    await store.revoke_key(key_id)
    return Response(status_code=204)


@router.post("/tasks/{task_id}/stream-tokens", tags=["tasks"], summary="A token to follow a task by", status_code=201)
async def stream_token(task_id: str, parts: Parts, who: Who) -> Response:
    """For browsers, whose EventSource sends no header: `GET /tasks/{task_id}/events?token=…` within a minute.

    It shows that task's events and nothing else, and ends with the key that it was asked for with.
    """
    await parts.snapshots.fresh(task_id, who.tenant)
    token, ends_s = await parts.stream_tokens.make(task_id, who.grant.key_id, who.tenant)
    return _json(StreamTokenView(token, at(ends_s * 1000)), 201)


def _is_first(who: Caller) -> bool:
    """Whether it is TASKGATE_API_KEY, which alone is about the keys of all tenants, and may everything."""
    return not who.grant.key_id


def _may(who: Caller, key: ApiKey) -> bool:
    return _is_first(who) or key.tenant == who.tenant


async def _own(parts: Gateway, who: Caller) -> tuple[ApiKey, int]:
    """The caller's own key as it is kept, and Redis' time. Raises Problem: it has ended."""
    if _is_first(who):
        first = ApiKey(id="", digest="", hint="", name="", tenant=who.tenant, scopes=list(SCOPES), created_ms=0)
        return first, await parts.store.now_ms()
    [own] = await parts.keys.read_keys([who.grant.key_id])
    if own is None or 0 < own.key.expires_ms <= own.now_ms:
        raise unauthorized()
    return own.key, own.now_ms


def _check_may(who: Caller, mine: ApiKey, key: ApiKey) -> None:
    if not _is_first(who) and not may_no_more(key, mine):
        raise Problem(
            "forbidden", "A key makes none of another tenant, or with a scope, rate, number of streams or end past its."
        )


def _most_of_tenant(who: Caller) -> int:
    return MOST if _is_first(who) else MOST_OF_TENANT


def _burst(rate_per_s: float, mine: ApiKey) -> int:
    """If none is asked for."""
    if rate_per_s == mine.rate_per_s:
        return mine.burst
    usual = max(1, int(rate_per_s))
    return min(usual, mine.burst) if mine.rate_per_s else usual


async def _known(store: KeyStore, who: Caller, key_id: str) -> ApiKey:
    [known] = await store.read_keys([key_id])
    if known is None or not _may(who, known.key):
        raise KeyNotFound(key_id)
    return known.key


async def _body(request: Request, decode: Callable[[bytes], T]) -> T:
    raw = await request.body()
    if not is_json(request.headers.get("content-type", "").encode()):
        raise Problem("unsupported-media-type")
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise invalid(fault(str(error))) from None
    except (ValueError, RecursionError) as error:
        raise Problem("invalid-json", f"{error}.") from None


def _fields(key: ApiKey, used_ms: int) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "hint": key.hint,
        "tenant": key.tenant,
        "scopes": key.scopes,
        "rate_per_s": key.rate_per_s or None,
        "burst": key.burst if key.rate_per_s else None,
        "streams": key.streams or None,
        "created_at": at(key.created_ms),
        "expires_at": at(key.expires_ms) if key.expires_ms else None,
        "replaced_by": key.replaced_by or None,
        "last_used_at": at(used_ms) if used_ms else None,
    }


def _view(known: KnownKey) -> KeyView:
    return msgspec.convert(_fields(known.key, known.used_ms), KeyView)


def _new_view(key: ApiKey, secret: str) -> NewKeyView:
    return msgspec.convert(_fields(key, 0) | {"key": secret}, NewKeyView)


def _json(value: msgspec.Struct, status: int = 200) -> Response:
    return Response(encode(value), status, {"Cache-Control": "no-store"}, "application/json")
