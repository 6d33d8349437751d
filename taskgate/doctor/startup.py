"""What every process looks at before it serves: whether this Redis can be used, and what its promises are worth."""

import asyncio

import structlog
from redis.exceptions import ResponseError

from taskgate.contract import keys
from taskgate.contract.connection import connect
from taskgate.contract.errors import TaskgateError
from taskgate.contract.store import Store
from taskgate.doctor.finding import Finding, Level
from taskgate.doctor.server import server
from taskgate.settings import Settings, SettingsError

log = structlog.get_logger()


def look_at_redis(settings: Settings) -> None:
    """Log what its version, policy and persistence mean. One that is away for now is only told: it may come.

    Raises:
        SettingsError: it can never work (login, certificate, permissions, version, cluster), or, in strict mode, it
            may lose or evict what was accepted, or cannot be asked.
    """
    findings = server(settings)
    if not any(each.stops or (each.what == "redis" and each.level is Level.FAIL) for each in findings):
        findings += asyncio.run(_try_out(settings))
    sound = {each.what.replace(" ", "_"): each.found for each in findings if each.level is Level.OK}
    if sound:
        log.info("redis is sound in this", **sound)
    for each in findings:
        if each.level is not Level.OK:
            log.warning("redis is not as it should be", check=each.what, found=each.found, advice=each.advice)
    refused = [each for each in findings if each.stops or (settings.strict and each.level is Level.FAIL)]
    if refused:
        raise SettingsError("\n".join(map(_line, refused)))


async def _try_out(settings: Settings) -> list[Finding]:
    """Writes and tells as we do later: a user may lack the permission for it."""
    client = connect(settings, "gateway")
    store = Store(client, partitions=settings.partitions)
    try:
        await store.probe()
        await store.notify(keys.notices(0), "")
    except ResponseError as error:
        advice = "its user needs the keys and channels tg:* and the commands in docs/security.md (ACL: ~tg:* &tg:* +…)"
        return [Finding(Level.FAIL, "permissions", str(error), advice, stops=True)]
    except TaskgateError as error:
        advice = "tasks are accepted once it takes writes: is its memory or disk full, or is it a replica?"
        return [Finding(Level.WARN, "writes", str(error), advice)]
    finally:
        await client.aclose()
    return []


def _line(finding: Finding) -> str:
    return f"{finding.what}: {finding.found}; {finding.advice}"
