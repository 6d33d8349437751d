"""The handler API: what a decorated function means, and what is refused when it is loaded."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypedDict

from taskgate import Attempt, Fail, Retry, handler, testing
from taskgate.contract.ids import new_task_id
from taskgate.handlers import Handler, HandlerError, Options, load
from taskgate.up import tryout
from workers import wire
from workers.attempts import ChildAttempt
from workers.slot import Slot

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("own_handlers")


class Page(BaseModel):
    number: int
    size: Literal["a4", "a5"] = "a4"


@dataclass
class Box:
    width: float


class Row(TypedDict):
    name: str


def of(function: Any) -> Handler:
    return Handler("t", function, Options())


def test_the_function_stays_as_it_is() -> None:
    @handler("plain")
    def plain(payload: int) -> int:
        return payload + 1

    assert plain(1) == 2


def test_annotations_are_the_validation() -> None:
    def model(payload: Page) -> None: ...
    def data(payload: Box) -> None: ...
    def row(payload: Row) -> None: ...
    def mapping(payload: dict[str, int]) -> None: ...
    def ranged(payload: Annotated[int, Field(ge=1)]) -> None: ...

    assert of(model).read(b'{"number": 3}') == Page(number=3)
    assert of(data).read(b'{"width": 3}') == Box(width=3)
    assert of(row).read(b'{"name": "x"}') == {"name": "x"}
    assert of(mapping).read(b'{"a": 1}') == {"a": 1}
    for one, wrong in [
        (model, b'{"number": "3"}'),
        (model, b'{"number": 3.5}'),
        (model, b'{"number": 3, "size": "a6"}'),
        (model, b"[]"),
        (data, b'{"width": true}'),
        (row, b"{}"),
        (mapping, b'{"a": null}'),
        (ranged, b"0"),
        (ranged, b"1.5"),
        (ranged, b"not json"),
    ]:
        with pytest.raises(ValidationError):
            of(one).read(wrong)


@pytest.mark.parametrize("raw", [b"null", b"[1, {}]", b'"x"', b"1.5"])
def test_without_annotation_any_json_fits(raw: bytes) -> None:
    def free(payload): ...  # type: ignore[no-untyped-def]

    assert of(free).schema == {}
    of(free).read(raw)
    for wrong in (b"NaN", b"\xff", b"", b'"\\ud800"'):
        with pytest.raises(ValueError):  # noqa: PT011
            of(free).read(wrong)


@pytest.mark.parametrize(("raw", "number"), [("3.0", 3), ("-0.0", 0), ("1e19", 10**19), ("-1e300", int(-1e300))])
def test_schema_and_handler_agree_about_whole_numbers(raw: str, number: int) -> None:
    def model(payload: Page) -> None: ...

    def mixed(payload: list[int | str | Literal[7]]) -> None: ...

    assert of(model).read(f'{{"number": {raw}}}'.encode()) == Page(number=number)
    assert of(mixed).read(f'["3.0", {raw}, 7.0]'.encode()) == ["3.0", number, 7]
    for wrong in ('{"number": 3.5}', f'{{"number": {raw}, "size": 3.0}}', f'{{"number": "{raw}"}}'):
        with pytest.raises(ValidationError):
            of(model).read(wrong.encode())


def test_no_number_that_is_none_becomes_null_in_silence() -> None:
    """pydantic would write it so, where a model says nothing else."""

    def free(payload: Any) -> dict[str, Any]:
        return {}

    def typed(payload: Any) -> list[float]:
        return []

    def untyped(payload): ...  # type: ignore[no-untyped-def]

    for function, result in [(free, {"a": [math.nan], "b": None}), (typed, [math.inf]), (untyped, [-math.inf])]:
        with pytest.raises(ValueError):  # noqa: PT011
            of(function).dump(result)
    assert of(free).dump({"a": [1.5], "b": None}) == b'{"a":[1.5],"b":null}'


def test_the_hash_follows_the_schema() -> None:
    def one(payload: Page) -> None: ...
    def same(other_name: Page) -> None: ...
    def other(payload: Box) -> None: ...

    assert of(one).schema_hash == of(same).schema_hash != of(other).schema_hash
    assert of(one).schema["properties"]["size"]["enum"] == ["a4", "a5"]


def test_what_a_handler_takes() -> None:
    attempt = testing.attempt()

    def both(payload: Any, attempt: Attempt) -> Any:
        return payload, attempt

    def only_payload(payload: Any) -> Any:
        return payload

    def only_attempt(attempt: Attempt) -> Any:
        return attempt

    def by_name(attempt: "Attempt") -> Any:
        return attempt

    def nothing() -> Any:
        return "nothing"

    assert of(both).call(1, attempt) == (1, attempt)
    assert of(only_payload).call(1, attempt) == 1
    assert of(only_attempt).call(1, attempt) is attempt
    assert of(by_name).call(1, attempt) is attempt
    assert of(nothing).call(1, attempt) == "nothing"


def test_what_cannot_be_a_handler_is_refused() -> None:
    def three(a: Any, b: Any, c: Any) -> None: ...
    def named(a: Any, *, b: Any) -> None: ...
    def yields(a: Any) -> Iterator[int]:
        yield 1

    class Callable:
        def __call__(self, payload: Any) -> None: ...

    for wrong in (three, named, yields, Callable(), print):
        with pytest.raises(TypeError):
            handler("x")(wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"max_attempts": 0},
        {"timeout_s": 367 * 86_400},
        {"max_attempts": 101},
        {"retry_base_s": -1},
        {"retry_max_s": float("inf")},
        {"memory_limit_mb": 0},
        {"concurrency": 0},
        {"concurrency_per_key": 10**6 + 1},
        {"queue": "a b"},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} .*"):
        handler("x", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": True},
        {"timeout_s": "60"},
        {"timeout_s": None},
        {"max_attempts": 2.0},
        {"max_attempts": True},
        {"retry_base_s": "1"},
        {"retry_max_s": True},
        {"retry_on": "ValueError"},
        {"retry_on": (ValueError, 3)},
        {"queue": None},
        {"memory_limit_mb": 1.5},
        {"memory_limit_mb": True},
        {"fresh_process": 1},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"concurrency_per_key": None},
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(options))} .*must be"):
        handler("x", **options)


def test_a_decorator_without_its_type_is_refused() -> None:
    def work(payload: Any) -> None: ...

    with pytest.raises(TypeError, match="task type must be a string"):
        handler(work)  # type: ignore[arg-type]


def test_retries_may_be_immediate() -> None:
    handler("x", retry_base_s=0, retry_max_s=0)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "é"])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names"):
        handler(name)


@pytest.mark.parametrize("options", [{"memory_limit_mb": 5}, {"fresh_process": True}])
def test_what_needs_a_process_of_its_own_cannot_be_async(options: dict[str, Any]) -> None:
    async def shared(payload: Any) -> None: ...

    with pytest.raises(ValueError, match="async"):
        handler("x", **options)(shared)


def test_a_package_is_loaded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop" / "late").mkdir(parents=True)
    for path, name in [("shop/__init__.py", "a"), ("shop/mails.py", "b"), ("shop/late/__init__.py", "c")]:
        (tmp_path / path).write_text(
            f"from taskgate import handler\n@handler('shop.{name}', queue='q')\ndef f(payload: int): 'Says {name}.'\n"
        )
    monkeypatch.syspath_prepend(tmp_path)

    loaded = load(["shop"])

    assert {"shop.a", "shop.b", "shop.c"} <= set(loaded)
    info = loaded["shop.b"].info()
    assert (info.queue, info.kind, info.description, bytes(info.schema)) == (
        "q",
        "sync",
        "Says b.",
        b'{"type": "integer"}',
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("1 / 0", "ZeroDivisionError"),
        ("from taskgate import handler\n@handler('x y')\ndef f(p): ...", "x y"),
        ("from taskgate import handler\n@handler('x')\ndef f(p: 'Nowhere'): ...", "Nowhere"),
        ("from taskgate import handler\nclass Odd: ...\n@handler('x')\ndef f(p: Odd): ...", "Odd"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    name = f"broken_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(HandlerError, match=said):
        load([name])


def test_a_module_without_a_handler_is_refused() -> None:
    with pytest.raises(HandlerError, match="json declares no handler"):
        load(["json"])


def test_a_module_that_takes_its_handlers_from_another_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made.py").write_text("from taskgate import handler\n@handler('made')\ndef f(p): ...\n")
    (tmp_path / "facade.py").write_text("from made import f\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "made" in load(["made", "facade"])
    assert "made" in load(["facade"])


def test_tryout_says_in_its_last_line_which_option_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("from taskgate import handler\n@handler('x', timeout_s='60')\ndef f(p): ...\n")
    command = [sys.executable, str(tryout.__file__), "odd"]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "taskgate: handlers: cannot import 'odd': TypeError: timeout_s of 'x' must be a number, not '60'"
    )


def test_two_handlers_of_one_type_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("from taskgate import handler\n@handler('same')\ndef f(p): ...\n")
    script = "import sys; sys.path.append(sys.argv[1]); from taskgate.handlers import load; load(['one', 'two'])"

    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)

    assert "task type 'same' is defined twice: in one and in two" in ended.stderr


def test_a_recording_attempt_keeps_what_the_handler_did() -> None:
    def work(payload: int, attempt: Attempt) -> str:
        attempt.progress(1, 2, stage="s")
        attempt.emit("made", {"n": payload})
        attempt.checkpoint([payload])
        with attempt.waiting("lunch"):
            pass
        if attempt.resume_from:
            raise Retry(1)
        return attempt.submit("other", {"x": 1})

    attempt = testing.attempt(number=2)

    other = work(5, attempt)

    assert [(one.current, one.total, one.stage) for one in attempt.reported] == [(1, 2, "s")]
    assert (attempt.emitted, attempt.checkpoints, attempt.waits) == ([("made", {"n": 5})], [[5]], ["lunch"])
    assert (attempt.submitted[0].id, attempt.submitted[0].payload) == (other, b'{"x":1}')
    assert (attempt.number, attempt.idempotency_key) == (2, attempt.id)
    assert other[-2:] == attempt.id[-2:], "the partition of the parent"
    with pytest.raises(Retry):
        work(5, testing.attempt(resume_from=1))


def test_a_recording_attempt_refuses_what_the_real_one_refuses() -> None:
    attempt = testing.attempt()

    for wrong in (
        lambda: attempt.emit("a b"),
        lambda: attempt.emit("big", {"x": "y" * 20_000}),
        lambda: attempt.emit("nan", {"x": float("nan")}),
        lambda: attempt.checkpoint(float("inf")),
        lambda: attempt.checkpoint("x" * 300_000),
        lambda: attempt.submit("a b"),
        lambda: attempt.submit("a", priority=10),
        lambda: attempt.submit("a", delay_s=-1),
        lambda: attempt.submit("a", delay_s=float("nan")),
        lambda: attempt.submit("a", timeout_s=0),
        lambda: attempt.submit("a", float("nan")),
        lambda: Retry(-1),
        lambda: Retry(float("nan")),
        lambda: Retry(1e18),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            wrong()


@pytest.fixture
def real() -> Iterator[Attempt]:
    slot = Slot.create(1)
    slot.records[0].begin(1, 1)
    task = wire.Task(
        seq=1,
        record=0,
        id=new_task_id(),
        type="a",
        number=1,
        payload=b"null",
        checkpoint=b"",
        metadata=b"",
        timeout_s=1.0,
        deadline_ns=0,
        last=False,
    )
    yield ChildAttempt(task, slot.records[0], started_ns=0, send=lambda _: None)
    slot.close()


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        (lambda attempt: attempt.progress(None, None), TypeError, "current must be a number, not NoneType"),
        (lambda attempt: attempt.progress("5", 10), TypeError, "current must be a number, not str"),
        (lambda attempt: attempt.progress(10**400), ValueError, "current does not fit"),
        (lambda attempt: attempt.progress(1, "10"), TypeError, "total must be a number, not str"),
        (lambda attempt: attempt.progress(1, unit=5), TypeError, "unit must be a str, not int"),
        (lambda attempt: attempt.progress(1, stage=None), TypeError, "stage must be a str, not NoneType"),
        (lambda attempt: attempt.progress(1, message=b"x"), TypeError, "message must be a str, not bytes"),
        (lambda attempt: attempt.emit("ok", 1), TypeError, "data must be a mapping, not int"),
        (lambda attempt: attempt.emit("ok", 0), TypeError, "data must be a mapping, not int"),
        (lambda attempt: attempt.emit("ok", float("nan")), TypeError, "data must be a mapping, not float"),
        (lambda attempt: attempt.emit("ok", b"x"), TypeError, "data must be a mapping, not bytes"),
        (lambda attempt: attempt.emit("ok", "x"), TypeError, "data must be a mapping, not str"),
        (lambda attempt: attempt.emit(5), TypeError, "name must be a str, not int"),
        (lambda attempt: attempt.emit("a b"), ValueError, "name: names have"),
        (lambda attempt: attempt.waiting(5).__enter__(), TypeError, "text must be a str, not int"),
    ],
)
def test_what_is_said_wrongly_is_refused_by_its_name(
    real: Attempt, wrong: Callable[[Attempt], None], error: type[Exception], named: str
) -> None:
    """By the attempt of unit tests too."""
    for attempt in (real, testing.attempt()):
        with pytest.raises(error, match=f"^{named}"):
            wrong(attempt)


def test_an_attempt_submits_a_hundred_tasks_at_most() -> None:
    attempt = testing.attempt()
    for _ in range(100):
        attempt.submit("a")

    with pytest.raises(ValueError, match="at most 100"):
        attempt.submit("a")


def test_fail_says_why() -> None:
    assert str(Fail("no such customer")) == "no such customer"
