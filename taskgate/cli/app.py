"""The list of commands. Their modules import what is heavy only when they run, so that `--help` is quick."""

from collections.abc import Callable

import typer

from taskgate.cli import lists, service, tasks
from taskgate.cli.options import ClientCommand, ServiceCommand

app = typer.Typer(
    name="taskgate",
    add_completion=False,
    no_args_is_help=True,
    context_settings={"max_content_width": 110},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Accepts jobs over HTTP, runs them in isolated worker processes, and lets anyone watch them honestly.",
    epilog="Exit codes: 0 done, the task succeeded · 1 the task ended otherwise, or a check failed · "
    "2 wrong usage or setting · 3 the service cannot be reached or refused.",
)

_SERVICE: tuple[Callable[..., None], ...] = (
    service.up,
    service.gateway,
    service.worker,
    service.settings,
    service.doctor,
)
_CLIENT: tuple[Callable[..., None], ...] = (
    tasks.submit,
    tasks.watch,
    tasks.status,
    tasks.cancel,
    tasks.redrive,
    lists.workers,
    lists.dead_letters,
)
for _command in _SERVICE:
    app.command(cls=ServiceCommand)(_command)
for _command in _CLIENT:
    app.command(cls=ClientCommand)(_command)
