"""`taskgate up`: everything on one machine, in the foreground."""

from taskgate.up.foreground import run

__all__ = ["run"]
