"""What a submission may say: the strict envelope around a payload whose bytes are kept as sent."""

import json
import re
import time
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import pydantic_core
from msgspec import Meta

from app.errors import Fault, Problem
from taskgate.contract.ids import NAME, NAME_RULE, is_name
from taskgate.contract.limits import (
    MAX_ATTEMPTS,
    MAX_DELAY_S,
    MAX_DEPTH,
    MAX_KEY_CHARS,
    MAX_METADATA_BYTES,
    MAX_PRIORITY,
    MAX_TIMEOUT_S,
    is_key,
)

_NAMES = f"names have {NAME_RULE}"

_KEYS = f"keys have 1 to {MAX_KEY_CHARS} printable ASCII characters"

_Name = Annotated[str, Meta(max_length=64, extra_json_schema={"pattern": f"^{NAME.pattern}$"})]
_Key = Annotated[str, Meta(extra_json_schema={"pattern": f"^[ -~]{{1,{MAX_KEY_CHARS}}}$"})]


class Envelope(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /tasks`."""

    type: _Name
    payload: msgspec.Raw
    queue: _Name | None = None
    priority: Annotated[int, Meta(ge=0, le=MAX_PRIORITY)] = 5
    delay_s: Annotated[float, Meta(ge=0, le=MAX_DELAY_S)] | None = None
    run_at: Annotated[datetime, Meta(tz=True)] | None = None
    deadline_s: Annotated[float, Meta(gt=0, le=MAX_DELAY_S)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    unique_key: _Key | None = None
    """One task with it that has not ended, per tenant."""
    on_conflict: Literal["return", "replace", "refuse"] | None = None
    """What happens while another task has the unique key: `return` that one (the default), `replace` it while it waits,
    `refuse`."""
    concurrency_key: _Key | None = None
    """As many tasks of the same type with it run at a time as the type allows, per tenant."""
    metadata: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_decode = msgspec.json.Decoder(Envelope).decode
_decode_any = msgspec.json.Decoder().decode
_MEMBERS = re.compile(rb'"(' + "|".join(Envelope.__struct_fields__).encode() + rb')"\s*:')
_ESCAPED = re.compile(rb'"[a-z_]{0,15}\\u00[^"]{0,90}"\s*:')
"""A member whose name may be one of ours, spelled with escapes."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MANY_DIGITS = re.compile(rb"(?<![0-9])[0-9]{4300}")


def parse(body: bytes) -> Envelope:
    """Raises Problem: not JSON (400), or not a submission (422, with pointers)."""
    try:
        envelope = _decode(body)
    except msgspec.ValidationError as error:
        raise invalid(fault(str(error))) from None
    except msgspec.DecodeError as error:
        if "truncated" in str(error) and _SURROGATE.search(body):  # which msgspec calls so, too
            raise Problem("invalid-json", "Cut off, or an escape is half of a surrogate pair.") from None
        raise Problem("invalid-json", f"{error}.") from None
    except RecursionError:
        raise _too_deep("#/payload") from None
    members = _MEMBERS.findall(body)
    if len(members) != len(set(members)) or (b"\\u00" in body and _ESCAPED.search(body)):
        _refuse_duplicates(body)
    if envelope.delay_s is not None and envelope.run_at is not None:
        raise invalid(Fault("#/run_at", "delay_s and run_at exclude each other", "conflict"))
    if envelope.run_at is not None and envelope.run_at.timestamp() - time.time() > MAX_DELAY_S:
        raise invalid(Fault("#/run_at", f"at most {MAX_DELAY_S} seconds from now", "out-of-range"))
    if envelope.queue is not None and not is_name(envelope.queue):
        raise invalid(Fault("#/queue", _NAMES, "invalid"))
    if envelope.unique_key is not None and not is_key(envelope.unique_key):
        raise invalid(Fault("#/unique_key", _KEYS, "invalid"))
    if envelope.concurrency_key is not None and not is_key(envelope.concurrency_key):
        raise invalid(Fault("#/concurrency_key", _KEYS, "invalid"))
    if envelope.on_conflict is not None and envelope.unique_key is None:
        raise invalid(Fault("#/on_conflict", "says what happens to a unique_key, and there is none", "conflict"))
    if metadata := bytes(envelope.metadata):
        _check_metadata(metadata)
    return envelope


def value_of(raw: bytes, pointer: str = "#/payload") -> Any:
    """The JSON value of `raw`, which the envelope's decoder has only skipped: finite, UTF-8, not too deep."""
    try:
        value = _decode_any(raw)
        if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
            pydantic_core.from_json(raw)  # for its fixed limit: msgspec's depends on the Python version
        elif len(raw) > 4300 and _MANY_DIGITS.search(raw):
            pydantic_core.from_json(raw)  # what handlers could not read, it cannot either
    except msgspec.ValidationError:
        raise _out_of_range(pointer) from None
    except RecursionError:
        raise _too_deep(pointer) from None
    except ValueError as error:
        if "recursion" in str(error):
            raise _too_deep(pointer) from None
        if "out of range" in str(error):
            raise _out_of_range(pointer) from None
        raise Problem("invalid-json", f"{pointer}: {error}.") from None
    return value


def invalid(*faults: Fault) -> Problem:
    return Problem("validation-error", errors=faults)


def pointer(*parts: str | int) -> str:
    """A JSON Pointer (RFC 6901) as a fragment; names of the caller's are cut, since they may be anything."""
    return "#" + "".join(f"/{str(part)[:64].replace('~', '~0').replace('/', '~1')}" for part in parts)


def fault(message: str) -> Fault:
    """msgspec says `what - at `$.where``, and nothing of the value."""
    what, _, where = message.partition(" - at `$")
    place = re.findall(r"\w+", where)
    if missing := re.fullmatch(r"Object missing required field `(.+)`", what):
        return Fault(pointer(*place, missing[1]), "required", "missing")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        return Fault(pointer(*place, unknown[1]), "unknown field", "unknown-field")
    if "length <=" in what:
        what = _NAMES
    return Fault(pointer(*place), what, "invalid")


def _check_metadata(raw: bytes) -> None:
    if len(raw) > MAX_METADATA_BYTES:
        raise invalid(Fault("#/metadata", f"at most {MAX_METADATA_BYTES} bytes", "too-large"))
    if not isinstance(value_of(raw, "#/metadata"), dict):
        raise invalid(Fault("#/metadata", "expected an object", "invalid"))


def _refuse_duplicates(body: bytes) -> None:
    """A member named twice means something else to every reader; inside the payload it is the handler's business."""
    names: list[str] = []

    def last(pairs: list[tuple[str, Any]]) -> None:
        names[:] = [name for name, _ in pairs]

    try:
        # The outermost object comes last. Numbers stay text: what is too large for one is the payload's own check's.
        json.loads(body, object_pairs_hook=last, parse_int=str, parse_float=str)
    except RecursionError:
        raise _too_deep("#/payload") from None
    except ValueError:
        raise Problem("invalid-json", "A payload is not JSON.") from None
    for name in set(names):
        if names.count(name) > 1:
            raise invalid(Fault(pointer(name), "given more than once", "duplicate"))


def _out_of_range(where: str) -> Problem:
    return invalid(Fault(where, "holds a number that is out of range", "out-of-range"))


def _too_deep(where: str) -> Problem:
    return invalid(Fault(where, f"a value inside more than {MAX_DEPTH} arrays and objects", "too-deep"))
