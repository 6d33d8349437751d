"""`taskgate doctor`: whether this machine and this Redis can keep the promises, with the settings given."""

from taskgate.doctor.checklist import checklist
from taskgate.doctor.finding import Finding, Level
from taskgate.doctor.kernel import kernel
from taskgate.doctor.machine import machine
from taskgate.doctor.policy import policy
from taskgate.doctor.server import embedded, server
from taskgate.doctor.startup import look_at_redis
from taskgate.settings import Settings

__all__ = ["Finding", "Level", "examine", "look_at_redis"]


def examine(settings: Settings) -> list[Finding]:
    """Every check, the machine's first. Changes nothing on the server, and starts none."""
    return [
        *machine(settings),
        *kernel(settings),
        *policy(settings),
        *(embedded(settings) if settings.redis_url is None else server(settings, with_disk=True)),
        *checklist(settings),
    ]
