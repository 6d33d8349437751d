"""`taskgate queues`: what waits, runs and died, how fast it moves, and how near each limit is."""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from taskgate.cli.options import AsJson
from taskgate.cli.text import ExitCode, fail, plain, print_json

if TYPE_CHECKING:
    from taskgate.client import Client, Queues

_EVERY_S = 1.0
"""The service looks once a second itself."""
_PLAIN = str.maketrans("█░·", "#-,")
"""Where standard output has no such characters."""


class _View(Protocol):
    def show(self, text: str) -> None: ...


def queues(
    ctx: typer.Context,
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="only that one", show_default=False)] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="go on, once a second, until Ctrl-C")] = False,
    as_json: AsJson = False,
) -> None:
    """Show each queue: depth by state, speed, limits and shares.

    A bar for each limit says how much of it is used, one for each tenant what its share of the next tasks is.

    Examples:

      taskgate queues --watch

      taskgate queues default --json | jq '.items[0].estimated_wait_ms'
    """
    from taskgate.cli.queue_lines import lines

    client: Client = ctx.obj
    if as_json:
        for _ in _times(watch):
            print_json(found := client.queues(queue))
            _expect(queue, found)
        return
    with _live() if watch else nullcontext(Printed()) as view:
        for _ in _times(watch):
            found = client.queues(queue)
            _expect(queue, found)
            view.show("\n".join(lines(found)))


def _expect(queue: str | None, found: "Queues") -> None:
    if queue is not None and not found.get("items"):
        fail(f"there is no queue {plain(queue)}", ExitCode.NOT_FOUND)


def _times(watch: bool) -> Iterator[None]:
    yield
    while watch:
        time.sleep(_EVERY_S)
        yield


class Printed:
    """One picture below the other."""

    def show(self, text: str) -> None:
        try:
            text.encode(sys.stdout.encoding)
        except UnicodeEncodeError:
            text = text.translate(_PLAIN)
        print(text, flush=True)


def _live() -> AbstractContextManager[_View]:
    """Drawn again in its place, on a terminal that can."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(file=sys.stdout)

        class Drawn(Live):
            def show(self, text: str) -> None:
                self.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

        if not console.is_dumb_terminal:
            return Drawn(console=console, auto_refresh=False)
    return nullcontext(Printed())
