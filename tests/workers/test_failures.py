"""Exceptions that do not travel (F15): each becomes a bounded error of valid JSON, whatever it does."""

import json
import socket
import threading
from typing import Any

import pytest

from taskgate.contract.states import ErrorKind
from workers.failures import MESSAGE_CHARS, TRACEBACK_CHARS, describe


class NeedsTwo(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class HoldsThings(Exception):
    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()
        self.socket = socket.socket()


class StrRaises(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even this")


class StrIsNone(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # noqa: PLE0307


class OddText(str):
    def __len__(self) -> int:
        raise RuntimeError

    def encode(self, *_: Any) -> bytes:
        raise RuntimeError


class StrIsOdd(Exception):
    def __str__(self) -> str:
        return OddText("odd")


class HidesItsClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("nobody may know")


class HidesItsCause(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise SystemExit


def described(error: BaseException, **facts: Any) -> dict[str, Any]:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001
        raw = describe(raised, **facts)
    decoded = json.loads(raw.decode())
    assert isinstance(decoded, dict)
    assert len(decoded["message"]) <= MESSAGE_CHARS + 100
    assert len(decoded["traceback"]) <= TRACEBACK_CHARS * 4
    return decoded


def test_class_name_message_and_place() -> None:
    shown = described(NeedsTwo(1, 2))

    assert shown["kind"] == "exception"
    assert shown["type"] == f"{__name__}.NeedsTwo"
    assert shown["message"] == "1 and 2"
    assert "in described" in shown["traceback"]


def test_builtin_names_stand_alone() -> None:
    assert described(KeyError("x"))["type"] == "KeyError"


def test_what_the_exception_holds_does_not_matter() -> None:
    error = HoldsThings()

    assert described(error)["message"] == "held"
    error.socket.close()


@pytest.mark.parametrize("error", [StrRaises(), StrIsNone()])
def test_a_message_that_cannot_be_read(error: Exception) -> None:
    assert "cannot be read" in described(error)["message"]


def test_an_exception_that_hides_its_class() -> None:
    assert described(HidesItsClass("m"))["type"] == f"{__name__}.HidesItsClass"


def test_an_exception_that_hides_its_cause() -> None:
    shown = described(HidesItsCause("m"))

    assert (shown["message"], "cannot be read" in shown["traceback"]) == ("m", True)


def test_a_message_that_is_no_real_string() -> None:
    assert described(StrIsOdd())["message"] == "odd"


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), ValueError("")])
def test_no_reason_is_empty(error: BaseException) -> None:
    assert described(error)["message"] == type(error).__name__


def test_a_message_of_50_mb_is_cut() -> None:
    shown = described(ValueError("x" * 50_000_000))

    assert shown["message"].endswith("(50000000 characters)")
    assert len(json.dumps(shown)) < 40_000


def test_a_message_that_no_terminal_should_see() -> None:
    shown = described(ValueError("\ud800 nul\0 \x1b[31mred\x1b[0m \x9b line\nend\ttab"))

    assert shown["message"] == "? nul\\x00 \\x1b[31mred\\x1b[0m \\x9b line\nend\ttab"
    assert "\x1b" not in shown["traceback"]


def test_a_chain_of_1000_causes() -> None:
    error: BaseException = ValueError("first")
    for n in range(1000):
        later = ValueError(f"number {n}")
        later.__cause__ = error
        error = later

    trace = described(error)["traceback"]

    assert "earlier causes left out" in trace
    assert trace.rstrip().endswith("number 999")
    assert "number 996" in trace
    assert "number 990" not in trace


def test_a_chain_that_bites_its_tail() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one

    assert "direct cause" in described(one)["traceback"]


def test_suppressed_context_stays_hidden() -> None:
    error = ValueError("shown")
    error.__context__, error.__suppress_context__ = KeyError("hidden"), True

    assert "hidden" not in described(error)["traceback"]


def test_groups_show_some_of_what_they_hold() -> None:
    group = ExceptionGroup("many", [ValueError(f"number {n}") for n in range(500)])

    trace = described(group)["traceback"]

    assert "ExceptionGroup: many" in trace
    assert "number 9" in trace
    assert "and 490 more" in trace
    assert len(trace) <= TRACEBACK_CHARS * 1.1


def test_groups_in_groups_without_end() -> None:
    group: ExceptionGroup[Any] = ExceptionGroup("innermost", [ValueError("x")])
    for _ in range(2000):
        group = ExceptionGroup("outer", [group])

    assert described(group)["type"] == "ExceptionGroup"


def test_a_recursion_shows_both_ends() -> None:
    def deeper(n: int) -> None:
        deeper(n + 1)

    with pytest.raises(RecursionError) as raised:
        deeper(0)
    trace = json.loads(describe(raised.value))["traceback"]

    assert "frames left out" in trace
    assert trace.count("in deeper") < 60


def test_memory_is_a_kind_of_its_own() -> None:
    assert described(MemoryError())["kind"] == "memory"
    assert described(MemoryError(), kind=ErrorKind.TIMEOUT)["kind"] == "timeout"


def test_a_class_with_hostile_names() -> None:
    hostile = type("Bad\n\x1b" + "x" * 1000, (Exception,), {"__module__": None})

    shown = described(hostile("m"))

    assert len(shown["type"]) < 300
    assert "\x1b" not in shown["type"]
