"""What a key may be for."""

from typing import Literal, get_args

Scope = Literal["tasks:read", "tasks:write", "tasks:cancel", "keys:admin", "metrics:read"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
