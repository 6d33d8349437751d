"""Service commands: up, gateway, worker, and what looks at their settings without starting anything."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli.text import ExitCode, fail, plain, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taskgate.cli.configuration import Configuration


def up(
    ctx: typer.Context,
    reload: Annotated[
        bool, typer.Option("--reload", help="start the workers anew when a handler's file changes")
    ] = False,
) -> None:
    """Run the whole service here until Ctrl-C.

    Gateway, workers and, unless --redis-url is given, a Valkey of its own, which keeps its data in --data-dir.
    Ctrl-C or SIGTERM stops it: running tasks are finished or go back to the queue, within --grace-s.
    Each setting is also an environment variable: --queue-limit-tasks is TASKGATE_QUEUE_LIMIT_TASKS.

    Examples:

      taskgate up

      taskgate up --handlers myjobs --reload

      taskgate up --redis-url redis://127.0.0.1:6379/0 --port 9000 --worker-processes 4
    """
    from taskgate.up import run

    configuration: Configuration = ctx.obj
    raise typer.Exit(run(configuration.settings, reload=reload))


def gateway(
    ctx: typer.Context,
    port_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="write the port here once it listens (with --port 0)")
    ] = None,
) -> None:
    """Run the HTTP gateway alone.

    On a Redis or Valkey that it shares with other gateways and the workers.

    Examples:

      taskgate gateway --redis-url redis://redis:6379/0 --host 0.0.0.0 --insecure
    """
    configuration: Configuration = ctx.obj
    _needs_redis(configuration)
    from app.main import run

    run(configuration.settings, port_file=port_file)


def worker(ctx: typer.Context) -> None:
    """Run this host's workers alone.

    A supervisor, the children that run the tasks, and their guard.

    Examples:

      taskgate worker --redis-url redis://redis:6379/0 --handlers myjobs --queues reports,mail
    """
    configuration: Configuration = ctx.obj
    _needs_redis(configuration)
    from workers.supervisor import run

    raise typer.Exit(run(configuration.settings))


def _needs_redis(configuration: "Configuration") -> None:
    if configuration.settings.redis_url is None:
        fail("--redis-url: needed here (or TASKGATE_REDIS_URL); only `up` brings its own Valkey", ExitCode.USAGE)


def settings(
    ctx: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="print a JSON object")] = False
) -> None:
    """Show every setting and where it came from.

    Its value (secrets are masked), whether option, environment, file or default gave it, and what it means; of a policy
    file also what it says.

    Examples:

      taskgate settings

      TASKGATE_LEASE_S=3 taskgate settings --json | jq .lease_s
    """

    from taskgate.cli.lists import print_table
    from taskgate.settings import PREFIX, Settings

    configuration: Configuration = ctx.obj
    rows = [
        (name, configuration.shown(name), configuration.sources[name], field.description or "")
        for name, field in Settings.model_fields.items()
    ]
    said = configuration.settings.policy.model_dump(mode="json", exclude_unset=True)
    if as_json:
        keys = ("value", "source", "description")
        found: dict[str, dict[str, Any]] = {name: dict(zip(keys, rest, strict=True)) for name, *rest in rows}
        found["policy_file"]["policy"] = said
        print_json(found)
    else:
        print_table(("SETTING", "VALUE", "FROM", "MEANING"), [(PREFIX + name.upper(), *rest) for name, *rest in rows])
        for line in _policy_lines(said):
            print(line)


def _policy_lines(said: "Mapping[str, Mapping[str, Mapping[str, Any]]]") -> "Iterator[str]":
    """What the file says, a line for each queue and tenant."""
    for kind, named in said.items():
        for name, given in named.items():
            words = ", ".join(f"{key} = {plain(value)}" for key, value in given.items())
            yield f"policy: {kind}.{plain(name)}: {words}"


def doctor(
    ctx: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="print a JSON list")] = False
) -> None:
    """Check this machine and the Redis, and say what to do.

    Against the settings given: kernel, limits, disk, Redis policy, persistence and connections, and the production
    checklist of docs/operations.md; LOOK is for what cannot be seen from here. Exit code 1 when something fails.

    Examples:

      taskgate doctor

      taskgate doctor --redis-url redis://redis:6379/0 --gateway-processes 4
    """

    from taskgate.doctor import Level, examine

    configuration: Configuration = ctx.obj
    findings = examine(configuration.settings)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for one in findings:
            advice = f"\n      → {one.advice}" if one.advice else ""
            print(f"{one.level:4}  {one.what}: {one.found}{advice}")
    if any(one.level is Level.FAIL for one in findings):
        raise typer.Exit(ExitCode.FAILED)
