"""What both kinds of child say once they are ready."""

import msgspec

from taskgate.handlers import Handlers
from workers import wire


def message(handlers: Handlers) -> wire.Ready:
    return wire.Ready(
        [
            wire.HandlerInfo(
                type=one.type,
                info=msgspec.json.encode(one.info()),
                retry_base_s=one.options.retry_base_s,
                retry_max_s=one.options.retry_max_s,
                fresh_process=one.options.fresh_process,
            )
            for one in handlers.values()
        ]
    )
