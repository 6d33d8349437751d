"""Options that many commands share: every setting for the service commands, URL and key for the client commands."""

import inspect
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from taskgate import secret_files
from taskgate.cli.text import ExitCode, code_of_error, explain, fail, note

if TYPE_CHECKING:
    from taskgate.client import AsyncClient, ServiceError

TaskId = Annotated[str, typer.Argument(metavar="ID", help="task id, as `submit` printed it")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON as the service sent it")]

_OPTIONS = "taskgate.client"
_KEY_VARIABLE = "TASKGATE_API_KEY"


def _parameters_of(function: Callable[..., None]) -> list[Any]:
    """What typer makes of a function's signature, without its `--help`."""
    only = typer.Typer(add_completion=False)
    only.command()(function)
    return list(typer.main.get_command(only).params)


@cache
def setting_options() -> list[Any]:
    """One option per field of `Settings`; what it means is for `settings.load` to judge."""
    from taskgate.settings import Settings

    def function(**given: Any) -> None: ...

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(name, field))
        for name, field in Settings.model_fields.items()
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    return _parameters_of(function)


def _option(name: str, field: Any) -> Any:
    is_switch = field.annotation is bool
    info = typer.Option(
        "--" + name.replace("_", "-"),
        help=f"{field.description}{_default_words(field)}",
        metavar=None if is_switch else _metavar(name, field.annotation),
        show_default=False,
    )
    return Annotated[bool | None if is_switch else str | None, info]


def _metavar(name: str, annotation: Any) -> str:
    for ending, unit in {"_s": "SECONDS", "_ms": "MS", "_bytes": "BYTES", "_dir": "PATH"}.items():
        if name.endswith(ending):
            return unit
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    if get_origin(annotation) is tuple:
        return "A,B"
    return "N" if annotation is int else "TEXT"


def _default_words(field: Any) -> str:
    default = field.get_default(call_default_factory=True)
    if default in (None, ()) or isinstance(default, bool):
        return ""
    return f"  [default: {','.join(default) if isinstance(default, tuple) else default}]"


class ServiceCommand(TyperCommand):
    """A command that takes every setting as an option; its `ctx.obj` is a `Configuration`, checked before it runs."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *setting_options()]

    def invoke(self, ctx: Any) -> Any:
        from taskgate.cli.configuration import Configuration
        from taskgate.settings import SettingsError

        options = {one.name: ctx.params.pop(one.name) for one in setting_options()}
        try:
            ctx.obj = Configuration.of(options)
            return super().invoke(ctx)
        except SettingsError as error:
            for line in str(error).splitlines():
                note(f"taskgate: {line}")
            raise typer.Exit(ExitCode.USAGE) from None


def _client_options(
    url: Annotated[
        str, typer.Option(envvar="TASKGATE_URL", help="where the service answers")
    ] = "http://127.0.0.1:8080",
    api_key: Annotated[
        str | None,
        typer.Option(envvar=_KEY_VARIABLE, help="key to send, if it wants one; TASKGATE_API_KEY_FILE: a file with it"),
    ] = None,
    retry_for: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="how long to try again what may be"),
    ] = 30.0,
) -> None: ...


@cache
def client_options() -> list[Any]:
    return _parameters_of(_client_options)


class ClientCommand(TyperCommand):
    """A command that speaks to the service: `ctx.obj` is the `Client`; a refusal is one line and an exit code."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *client_options()]

    def invoke(self, ctx: Any) -> Any:
        from taskgate.client import Client, ServiceError

        given = {one.name: ctx.params.pop(one.name) for one in client_options()}
        try:
            from_file = secret_files.read(os.environ, [_KEY_VARIABLE]).get(_KEY_VARIABLE)
        except secret_files.SecretFileError as error:
            fail(str(error), ExitCode.USAGE)
        options = {
            "url": given["url"],
            "api_key": given["api_key"] or from_file,
            "patience_s": given["retry_for"],
            "on_wait": say,
        }
        try:
            client = Client(**options)
        except ValueError as error:
            fail(str(error), ExitCode.USAGE)
        with client:
            ctx.obj = client
            ctx.meta[_OPTIONS] = options
            try:
                return super().invoke(ctx)
            except ServiceError as error:
                fail(explain(error), code_of_error(error))
            except KeyboardInterrupt:
                fail("interrupted; tasks go on", ExitCode.INTERRUPTED)


def client_for_asyncio(ctx: typer.Context) -> "AsyncClient":
    """Like `ctx.obj`, for commands that follow several things at once."""
    from taskgate.client import AsyncClient

    return AsyncClient(**ctx.meta[_OPTIONS])


def patience_s(ctx: typer.Context) -> float:
    """`--retry-for`."""
    seconds: float = ctx.meta[_OPTIONS]["patience_s"]
    return seconds


def say(error: "ServiceError", delay_s: float) -> None:
    note(f"taskgate: {explain(error)}; trying again in {delay_s:.1f} s")
