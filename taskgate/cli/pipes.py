"""The end of whoever reads what a command prints, as `head` does."""

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from taskgate.cli.text import ExitCode


class Commands(TyperGroup):
    """All commands; one whose reader has gone ends quietly, like other tools."""

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            # What is still buffered would fail again when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.UNREAD) from None
