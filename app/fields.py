"""Partial answers: `fields=id,status,progress(percent)`; nesting by dot, slash or one level of parentheses."""

import re
from typing import Any

from app.errors import Problem
from app.view import Estimate, Progress, Urls

_PART = re.compile(r"([A-Za-z_*]+)(?:[./]([A-Za-z_*]+)|\(([A-Za-z_*,]*)\))?(?:,|$)")
PARTS = {
    "progress": set(Progress.__struct_fields__),
    "estimate": set(Estimate.__struct_fields__),
    "urls": set(Urls.__struct_fields__),
}
"""Parts that are always there. What else has parts (error, effort, metadata) is open: a missing one is null."""


def pick(task: dict[str, Any], fields: str) -> dict[str, Any]:
    """What of `task` is asked for; the id always is.

    Raises:
        Problem: not a list of fields, or a task has no such field.
    """
    picked: dict[str, Any] = {"id": task["id"]}
    end = 0
    while end < len(fields):
        part = _PART.match(fields, end)
        if part is None:
            raise Problem(
                "unknown-field", "`fields` is a comma list of names, with `a.b`, `a/b` or `a(b,c)` for parts."
            )
        end = part.end()
        name, one, several = part.groups()
        if name == "*":
            picked |= task
            continue
        if name not in task:
            raise Problem("unknown-field", f"A task has no field `{name[:64]}`.")
        inner = [one] if one else [part for part in (several or "").split(",") if part]
        picked[name] = _inside(picked.get(name), task[name], name, inner)
    return picked


def _inside(before: Any, value: Any, name: str, inner: list[str]) -> Any:
    if not inner or "*" in inner:
        return value
    if unknown := set(inner) - PARTS.get(name, set(inner)):
        raise Problem("unknown-field", f"The field `{name}` has no part `{min(unknown)[:64]}`.")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Problem("unknown-field", f"The field `{name}` has no parts.")
    return (before if isinstance(before, dict) else {}) | {part: value.get(part) for part in inner}
