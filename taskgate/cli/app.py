"""The list of commands. Their modules import what is heavy only when they run, so that `--help` is quick."""

from collections.abc import Callable

import typer

from taskgate.cli import dead_letters, keys, lists, logs, queues, service, stack, tasks
from taskgate.cli.options import ClientCommand, ServiceCommand
from taskgate.cli.pipes import Commands

app = typer.Typer(
    name="taskgate",
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"max_content_width": 110},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Accepts jobs over HTTP, runs them in isolated worker processes, and lets anyone watch them honestly.",
    epilog="Exit codes: 0 done, the task succeeded · 1 the task failed, or a check did · 2 wrong usage or setting · "
    "3 the service cannot be reached, or not now · 4 the task was canceled · 5 it expired · 6 there is no such task · "
    "7 the service refused · 70 a fault of the command line · 130 interrupted · 141 nobody reads what it prints.",
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
    tasks.delete,
    stack.stack,
    logs.logs,
    lists.list_tasks,
    queues.queues,
    lists.workers,
    dead_letters.dead_letters,
    dead_letters.dead_letter,
    dead_letters.redrive,
    dead_letters.purge,
)
_NAMES: dict[Callable[..., None], str] = {lists.list_tasks: "list"}
"""Of those that are called otherwise than their function."""

for _command in _SERVICE:
    app.command(cls=ServiceCommand)(_command)
for _command in _CLIENT:
    app.command(_NAMES.get(_command), cls=ClientCommand)(_command)
app.add_typer(keys.app, name="keys")
