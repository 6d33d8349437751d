"""A strict reader of submissions, written from RFC 8259 and the documented rules alone: what the fuzzers compare with.

Slow and simple on purpose. It shares no code with the gateway's reader, and no JSON library.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

MAX_DEPTH = 200
"""Arrays and objects around a value of the payload."""

MAX_DIGITS = 4300
"""Before the point: what Python itself reads for an integer."""

YEAR_S = 366 * 86_400
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NUMBER = re.compile(rb"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:?\d\d)", re.ASCII)
_ESCAPES = {b'"': '"', b"\\": "\\", b"/": "/", b"b": "\b", b"f": "\f", b"n": "\n", b"r": "\r", b"t": "\t"}


class Refused(Exception):
    pass


class Raw(NamedTuple):
    """A value and the bytes that it was read from."""

    value: Any
    text: bytes


class Submission(NamedTuple):
    members: dict[str, Any]
    payload: Raw


class Reader:
    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0

    def whole(self) -> dict[str, Raw]:
        """The outermost object, each member once."""
        self._space()
        members = self._object(depth=0, once=True)
        self._space()
        if self.at != len(self.text):
            raise Refused("more after the end")
        return members

    def _space(self) -> None:
        while self.text[self.at : self.at + 1] in (b" ", b"\t", b"\n", b"\r"):
            self.at += 1

    def _take(self, wanted: bytes) -> None:
        if not self.text.startswith(wanted, self.at):
            raise Refused(f"no {wanted!r}")
        self.at += len(wanted)

    def _next(self) -> bytes:
        return self.text[self.at : self.at + 1]

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise Refused("too deep")
        match self._next():
            case b"{":
                return {name: raw.value for name, raw in self._object(depth=depth + 1, once=False).items()}
            case b"[":
                return self._array(depth + 1)
            case b'"':
                return self._string()
            case b"t":
                self._take(b"true")
                return True
            case b"f":
                self._take(b"false")
                return False
            case b"n":
                self._take(b"null")
                return None
        return self._number()

    def _object(self, *, depth: int, once: bool) -> dict[str, Raw]:
        self._take(b"{")
        found: dict[str, Raw] = {}
        self._space()
        if self._next() == b"}":
            self.at += 1
            return found
        while True:
            self._space()
            name = self._string()
            if once and name in found:
                raise Refused("twice")
            self._space()
            self._take(b":")
            self._space()
            start = self.at
            value = self._value(depth)
            found[name] = Raw(value, self.text[start : self.at])
            self._space()
            if self._next() == b"}":
                self.at += 1
                return found
            self._take(b",")

    def _array(self, depth: int) -> list[Any]:
        self._take(b"[")
        found: list[Any] = []
        self._space()
        if self._next() == b"]":
            self.at += 1
            return found
        while True:
            self._space()
            found.append(self._value(depth))
            self._space()
            if self._next() == b"]":
                self.at += 1
                return found
            self._take(b",")

    def _string(self) -> str:
        self._take(b'"')
        parts: list[str] = []
        while True:
            start = self.at
            while self._next() not in (b'"', b"\\", b""):
                if self.text[self.at] < 0x20:
                    raise Refused("a control character")
                self.at += 1
            try:
                parts.append(self.text[start : self.at].decode("utf-8", "strict"))
            except UnicodeDecodeError:
                raise Refused("not UTF-8") from None
            if self._next() == b'"':
                self.at += 1
                return "".join(parts)
            self._take(b"\\")
            parts.append(self._escape())

    def _escape(self) -> str:
        kind = self._next()
        self.at += 1
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        if kind != b"u":
            raise Refused("no such escape")
        unit = self._unit()
        if 0xDC00 <= unit < 0xE000:
            raise Refused("half a pair")
        if not 0xD800 <= unit < 0xDC00:
            return chr(unit)
        self._take(b"\\u")
        low = self._unit()
        if not 0xDC00 <= low < 0xE000:
            raise Refused("half a pair")
        return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))

    def _unit(self) -> int:
        digits = self.text[self.at : self.at + 4]
        if not re.fullmatch(rb"[0-9a-fA-F]{4}", digits):
            raise Refused("no four digits")
        self.at += 4
        return int(digits, 16)

    def _number(self) -> int | float:
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            raise Refused("no value")
        self.at = found.end()
        is_integer = found[2] is None and found[3] is None
        if len(found[1]) - (found[1].startswith(b"-") and not is_integer) > MAX_DIGITS:
            raise Refused("too many digits")
        if is_integer:
            return int(found[1])
        value = float(found[0])
        if math.isinf(value):
            raise Refused("out of range")
        return value


def read(body: bytes) -> Submission:
    """Raises Refused: it is not a submission."""
    members = Reader(body).whole()
    values = {name: raw.value for name, raw in members.items()}
    for name, value in values.items():
        if name not in _RULES or not _RULES[name](value):
            raise Refused(name)
    if not {"type", "payload"} <= values.keys():
        raise Refused("a member is missing")
    if values.get("delay_s") is not None and values.get("run_at") is not None:
        raise Refused("delay_s and run_at")
    if values.get("on_conflict") is not None and values.get("unique_key") is None:
        raise Refused("on_conflict")
    if "metadata" in members and len(members["metadata"].text) > 4096:
        raise Refused("metadata")
    payload = members["payload"]
    return Submission({name: value for name, value in values.items() if name != "payload"}, payload)


def _is_whole(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_key(value: Any) -> bool:
    return value is None or (isinstance(value, str) and re.fullmatch("[ -~]{1,255}", value) is not None)


def _is_seconds(value: Any, *, least: float) -> bool:
    return value is None or (type(value) in (int, float) and least <= value <= YEAR_S)


def _is_time(value: Any) -> bool:
    if value is None:
        return True
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return False
    *fields, _, zone = found.groups()
    try:
        year, month, day, hour, minute, second = map(int, fields)
        at = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        if zone not in ("Z", "z"):
            hours, minutes = int(zone[1:3]), int(zone[-2:])
            if hours > 23 or minutes > 59:
                return False
            at -= timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
        return at - datetime.now(UTC) <= timedelta(seconds=YEAR_S)
    except (ValueError, OverflowError):
        return False


_RULES: dict[str, Any] = {
    "type": lambda value: isinstance(value, str) and len(value) <= 64,  # whether there is such a type is another check
    "payload": lambda value: True,
    "queue": lambda value: value is None or (isinstance(value, str) and _NAME.fullmatch(value) is not None),
    "priority": lambda value: _is_whole(value, 0, 9),
    "delay_s": lambda value: _is_seconds(value, least=0),
    "run_at": _is_time,
    "deadline_s": lambda value: _is_seconds(value, least=math.ulp(0)),
    "timeout_s": lambda value: _is_seconds(value, least=math.ulp(0)),
    "max_attempts": lambda value: value is None or _is_whole(value, 1, 100),
    "unique_key": _is_key,
    "on_conflict": lambda value: value in (None, "return", "replace", "refuse"),
    "concurrency_key": _is_key,
    "metadata": lambda value: isinstance(value, dict),
}
