"""Task types: the `@handler` decorator, what its annotations mean, and the registry of what was loaded."""

import hashlib
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_type_hints

from taskgate.attempt import Attempt
from taskgate.contract.ids import NAME_RULE, is_name

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ValidationError

    from taskgate.contract.models import TypeInfo

F = TypeVar("F", bound=Callable[..., Any])
_ANY_JSON = object()
_LONGEST_S = 366 * 86_400
_MOST_MB = 2**30
_MOST_AT_A_TIME = 10**6


class _Json(NamedTuple):
    read: Callable[..., Any]
    write: Callable[..., bytes]
    unfit: "type[ValidationError]"


@cache
def _json() -> _Json:
    """Pydantic's, imported when the first handler runs; an import statement in each call costs it microseconds."""
    from pydantic_core import ValidationError, from_json, to_json

    return _Json(from_json, to_json, ValidationError)


class HandlerError(Exception):
    """A module with handlers cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    timeout_s: float = 3600
    max_attempts: int = 3
    retry_base_s: float = 1
    retry_max_s: float = 300
    retry_on: tuple[type[BaseException], ...] = (BaseException,)
    queue: str = "default"
    memory_limit_mb: int | None = None
    fresh_process: bool = False
    concurrency: int | None = None
    concurrency_per_key: int = 1


class Handler:
    """A task type: its function, options, and what goes in and out."""

    def __init__(self, task_type: str, function: Callable[..., Any], options: Options) -> None:
        self.type = task_type
        self.function = function
        self.options = options
        self.kind: Literal["sync", "async"] = "async" if inspect.iscoroutinefunction(function) else "sync"
        self.takes_payload, self.takes_attempt = _parameters(function)

    @property
    def origin(self) -> tuple[str, str]:
        """Where it is defined: a module imported twice defines the same handler, not a second one."""
        return self.function.__code__.co_filename, self.function.__qualname__

    def call(self, payload: Any, attempt: Attempt) -> Any:
        """Run the function; a coroutine when it is async."""
        if self.takes_payload:
            return self.function(payload, attempt) if self.takes_attempt else self.function(payload)
        return self.function(attempt) if self.takes_attempt else self.function()

    def read(self, payload: bytes) -> Any:
        """The validated payload.

        Raises:
            pydantic.ValidationError, ValueError: it does not fit.
        """
        if self._payload_adapter is None:
            return _json().read(payload, allow_inf_nan=False)
        try:
            return self._payload_adapter.validate_json(payload, strict=True)
        except _json().unfit as error:
            # JSON schema takes 1.0 for an integer, pydantic's strict mode does not: the door has let it in.
            unfit = error.errors(include_url=False, include_context=False)
            wholes = {one["input"] for one in unfit if isinstance(one["input"], float) and one["input"].is_integer()}
            if not wholes:
                raise
            value = _whole(_json().read(payload, allow_inf_nan=False), wholes)
            return self._payload_adapter.validate_json(_json().write(value), strict=True)

    def dump(self, result: Any) -> bytes:
        """The result as strict JSON, checked against the return annotation.

        Raises:
            pydantic.ValidationError, ValueError: it does not fit, or is no JSON.
        """
        if result is None and self._result_adapter is None:
            return b"null"
        core = _json()
        if self._result_adapter is None:
            raw = core.write(result, inf_nan_mode="constants")
        else:
            value = self._result_adapter.validate_python(result)
            raw = self._result_adapter.dump_json(value)
            if b"null" in raw:
                # pydantic writes NaN as null wherever a model says nothing else: that would be a silent loss.
                plain = self._result_adapter.dump_python(value)
                core.read(core.write(plain, inf_nan_mode="constants", fallback=lambda _: None), allow_inf_nan=False)
        core.read(raw, allow_inf_nan=False)
        return raw

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the payload."""
        if self._payload_adapter is None:
            return {}
        return self._payload_adapter.json_schema()

    @cached_property
    def schema_hash(self) -> str:
        canonical = json.dumps(self.schema, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @cached_property
    def description(self) -> str:
        """First paragraph of the docstring."""
        return (inspect.getdoc(self.function) or "").split("\n\n")[0].replace("\n", " ").strip()

    def info(self) -> "TypeInfo":
        """What supervisors publish about it."""
        import msgspec

        from taskgate.contract.models import TypeInfo

        return TypeInfo(
            type=self.type,
            schema_hash=self.schema_hash,
            kind=self.kind,
            queue=self.options.queue,
            schema=msgspec.Raw(json.dumps(self.schema).encode()),
            timeout_s=self.options.timeout_s,
            max_attempts=self.options.max_attempts,
            description=self.description,
            memory_limit_mb=self.options.memory_limit_mb,
            concurrency=self.options.concurrency,
            concurrency_per_key=self.options.concurrency_per_key,
        )

    def prepare(self) -> None:
        """Resolve annotations and build validators now, not at the first task.

        Raises:
            HandlerError: an annotation cannot be resolved, or has no JSON schema.
        """
        try:
            _ = self._payload_adapter, self._result_adapter, self.schema_hash
        except Exception as error:
            raise HandlerError(
                f"task type {self.type!r} ({self.function.__module__}.{self.function.__qualname__}): "
                f"its annotations cannot be used: {type(error).__name__}: {error}"
            ) from error

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.function, include_extras=True)

    @cached_property
    def _payload_adapter(self) -> "TypeAdapter[Any] | None":
        if not self.takes_payload:
            return None
        name = next(iter(inspect.signature(self.function).parameters))
        return _adapter(self._hints.get(name, _ANY_JSON))

    @cached_property
    def _result_adapter(self) -> "TypeAdapter[Any] | None":
        return _adapter(self._hints.get("return", _ANY_JSON))


class Handlers(Mapping[str, Handler]):
    """The task types of this process, and what each of its children does first."""

    def __init__(self, handlers: Iterable[Handler], starts: Iterable[Callable[[], Any]] = ()) -> None:
        self._by_type: dict[str, Handler] = {}
        self.starts = list(starts)
        for one in handlers:
            other = self._by_type.setdefault(one.type, one)
            if other is not one:
                raise HandlerError(
                    f"task type {one.type!r} is defined twice: in {other.function.__module__}"
                    f" and in {one.function.__module__}"
                )

    def __getitem__(self, task_type: str) -> Handler:
        return self._by_type[task_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_type)

    def __len__(self) -> int:
        return len(self._by_type)


_declared: dict[tuple[str, str, str], Handler] = {}
_starts: dict[tuple[str, str], Callable[[], Any]] = {}


def handler(
    task_type: str,
    *,
    timeout_s: float = 3600,
    max_attempts: int = 3,
    retry_base_s: float = 1,
    retry_max_s: float = 300,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = BaseException,
    queue: str = "default",
    memory_limit_mb: int | None = None,
    fresh_process: bool = False,
    concurrency: int | None = None,
    concurrency_per_key: int = 1,
) -> Callable[[F], F]:
    """Make a function the handler of a task type; the function itself stays as it is.

    `concurrency`: so many tasks of the type run at a time, on all machines together; `concurrency_per_key`: so many of
    those that were submitted with the same `concurrency_key`.
    `retry_on`: exceptions after which another attempt is made (default: all). Sync handlers only: `memory_limit_mb` is
    what the process of a run, and what it starts, may use together; `fresh_process` gives every run a process of its
    own.
    """
    _check(task_type, "task type")
    _check(queue, "queue")
    _check_range(task_type, "timeout_s", timeout_s, kinds=(int, float), least=0.001, most=_LONGEST_S)
    _check_range(task_type, "max_attempts", max_attempts, kinds=(int,), least=1, most=100)
    _check_range(task_type, "retry_base_s", retry_base_s, kinds=(int, float), least=0, most=_LONGEST_S)
    _check_range(task_type, "retry_max_s", retry_max_s, kinds=(int, float), least=0, most=_LONGEST_S)
    if memory_limit_mb is not None:
        _check_range(task_type, "memory_limit_mb", memory_limit_mb, kinds=(int,), least=1, most=_MOST_MB)
    if concurrency is not None:
        _check_range(task_type, "concurrency", concurrency, kinds=(int,), least=1, most=_MOST_AT_A_TIME)
    _check_range(task_type, "concurrency_per_key", concurrency_per_key, kinds=(int,), least=1, most=_MOST_AT_A_TIME)
    if not isinstance(fresh_process, bool):
        raise TypeError(f"fresh_process of {task_type!r} must be True or False, not {fresh_process!r}")
    causes: tuple[Any, ...] = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if not all(isinstance(cause, type) and issubclass(cause, BaseException) for cause in causes):
        raise TypeError(f"retry_on of {task_type!r} must be an exception class or a tuple of them, not {retry_on!r}")
    options = Options(
        timeout_s=timeout_s,
        max_attempts=max_attempts,
        retry_base_s=retry_base_s,
        retry_max_s=retry_max_s,
        retry_on=causes,
        queue=queue,
        memory_limit_mb=memory_limit_mb,
        fresh_process=fresh_process,
        concurrency=concurrency,
        concurrency_per_key=concurrency_per_key,
    )

    def declare(function: F) -> F:
        one = Handler(task_type, function, options)
        if one.kind == "async" and (memory_limit_mb is not None or fresh_process):
            raise ValueError(f"{task_type!r} is async and shares its process: no memory_limit_mb, no fresh_process")
        _declared[(*one.origin, task_type)] = one
        return function

    return declare


def child_start(function: F) -> F:
    """Run `function` once in every child before its first task: pools, models. An async one in async children only."""
    _starts[function.__code__.co_filename, function.__qualname__] = function
    return function


def load(modules: Iterable[str]) -> Handlers:
    """Import `modules` (of a package, all its modules too) and return what they declare.

    Raises:
        HandlerError: one cannot be imported (the cause is chained), or does not declare what it should.
    """
    for name in modules:
        before = len(_declared), len(_starts)
        module = _imported(name)
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            _imported(found.name)
        if before == (len(_declared), len(_starts)) and not _declares(module):
            raise HandlerError(f"handlers: {name} declares no handler")
    handlers = Handlers(_declared.values(), _starts.values())
    for one in handlers.values():
        one.prepare()
    return handlers


def _declares(module: ModuleType) -> bool:
    """Whether a module that was imported before has a handler: in it, below it, or by import from another."""
    functions = [*(one.function for one in _declared.values()), *_starts.values()]
    inside = any(f"{one.__module__}.".startswith(f"{module.__name__}.") for one in functions)
    return inside or any(one is value for value in vars(module).values() for one in functions)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise HandlerError(f"handlers: cannot import {name!r}: {type(error).__name__}: {error}") from error


def _check(name: object, what: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {name!r}")
    if not is_name(name):
        raise ValueError(f"{what} {name!r}: names have {NAME_RULE}")


def _check_range(
    task_type: str, option: str, value: object, *, kinds: tuple[type, ...], least: float, most: float
) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds):
        kind = "a whole number" if kinds == (int,) else "a number"
        raise TypeError(f"{option} of {task_type!r} must be {kind}, not {value!r}")
    if not (isinstance(value, int | float) and least <= value <= most):  # nor NaN
        raise ValueError(f"{option} of {task_type!r} must be from {least} to {most}, not {value!r}")


def _parameters(function: Callable[..., Any]) -> tuple[bool, bool]:
    """Whether it takes the payload (first), and the attempt (second, or alone when it is annotated so).

    Raises:
        TypeError: it cannot be called so.
    """
    name = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        raise TypeError(f"a handler is a function, not {name}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"handler {name} yields; it must return its result")
    parameters = list(inspect.signature(function).parameters.values())
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    others = [one for one in parameters if one not in positional and one.default is one.empty]
    if any(one.kind is one.KEYWORD_ONLY for one in others) or any(one.default is one.empty for one in positional[2:]):
        raise TypeError(f"handler {name} takes (payload, attempt), (payload), (attempt: Attempt) or nothing")
    if len(positional) == 1 and _is_attempt(positional[0].annotation):
        return False, True
    return bool(positional), len(positional) > 1


def _is_attempt(annotation: Any) -> bool:
    return annotation is Attempt or (isinstance(annotation, str) and annotation.split(".")[-1] == "Attempt")


def _adapter(annotation: Any) -> "TypeAdapter[Any] | None":
    """None where anything that is JSON fits."""
    if annotation is _ANY_JSON or annotation is Any:
        return None
    from pydantic import TypeAdapter

    return TypeAdapter(annotation)


def _whole(value: Any, wholes: set[float]) -> Any:
    """`value` with integers in place of these floats."""
    match value:
        case float():
            return int(value) if value in wholes else value
        case list():
            return [_whole(each, wholes) for each in value]
        case dict():
            return {name: _whole(each, wholes) for name, each in value.items()}
    return value
