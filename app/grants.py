"""What a caller was granted: by its key, or by the service that asks for none."""

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from taskgate.contract.scopes import SCOPES

if TYPE_CHECKING:
    from app.sse import EventStream

ALL: frozenset[str] = frozenset(SCOPES)


class Grant:
    """One per key and process, which changes with the key, so that whoever holds it sees that it has ended."""

    def __init__(
        self, key_id: str = "", tenant: str = "default", scopes: frozenset[str] = ALL, *, names_tenant: bool = False
    ) -> None:
        self.key_id = key_id
        """"": it is no key of Redis'."""
        self.tenant = tenant
        self.scopes = scopes
        self.names_tenant = names_tenant
        """Whether TASKGATE_TENANT_HEADER is believed."""
        self.rate = ""
        """As Submission.key_rate; "": none of its own."""
        self.most_streams = 0
        """0: any."""
        self.ended = False
        self.good_until = float("inf")
        """By time.monotonic(): then Redis is asked again."""
        self.streams: WeakSet[EventStream] = WeakSet()
        self.waits: set[asyncio.Task[Any]] = set()
        """Requests that are not answered yet."""

    @property
    def is_in_use(self) -> bool:
        return bool(self.streams or self.waits)

    def end(self) -> None:
        """And its streams, and what waits by it."""
        self.ended = True
        self.good_until = float("-inf")
        for stream in list(self.streams):
            stream.end()
        for wait in self.waits:
            wait.cancel()


OPEN = Grant(names_tenant=True)
"""Of everybody, where no key is asked for."""

PUBLIC = Grant(scopes=frozenset())
"""Of who asks for what is everybody's, without a key."""
