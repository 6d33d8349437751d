"""`demo.echo`: gives back what it got."""

from typing import Any

from taskgate import Attempt, handler


@handler("demo.echo")
def echo(payload: Any, attempt: Attempt) -> Any:
    """Returns its payload, whatever JSON it is."""
    return payload
