"""Checks of kernel settings. deploy/sysctl.d/60-taskgate.conf has good values, docs/operations.md what each is for."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from taskgate.doctor.finding import Finding, judge
from taskgate.network import is_loopback
from taskgate.settings import Settings

BACKLOG = 2048
"""Connections that a gateway lets wait to be accepted."""
STREAMS = 16_384
"""The most connections of a gateway process: a proxy on this machine needs a port for each."""
_APPLY = "install deploy/sysctl.d/60-taskgate.conf below /etc/sysctl.d, then sysctl --system"


def kernel(settings: Settings, root: Path = Path("/")) -> list[Finding]:
    """What this machine does not tell is passed over."""
    found = [*_connections(settings, root)]
    return [*found, *_memory(root)] if redis_is_here(settings) else found


def redis_is_here(settings: Settings) -> bool:
    """On this machine, as far as its address tells."""
    if settings.redis_url is None:
        return True
    url = urlsplit(settings.redis_url.get_secret_value())
    return url.scheme == "unix" or is_loopback(url.hostname)


def _connections(settings: Settings, root: Path) -> Iterator[Finding]:
    if (backlog := _number(root, "net/core/somaxconn")) is not None:
        yield judge(
            "somaxconn",
            f"{backlog:,} connections may wait to be accepted",
            warn=backlog < BACKLOG,
            advice=f"bursts of more are refused or wait a second for a second try: net.core.somaxconn 65535; {_APPLY}",
        )
    if (ports := _text(root, "net/ipv4/ip_local_port_range").split()) != []:
        first, last = map(int, ports)
        yield judge(
            "local ports",
            f"{last - first + 1:,} for outgoing connections to one address",
            warn=last - first + 1 < STREAMS,
            advice="a proxy here cannot reach a gateway with more streams: net.ipv4.ip_local_port_range 1024 65535; "
            f"{_APPLY}",
        )
    if (files := _number(root, "fs/file-max")) is not None:
        needed = settings.gateway_processes * STREAMS * 2
        yield judge(
            "files of all processes",
            f"{files:,} at most",
            warn=files < needed,
            advice=f"full gateways and their proxy need {needed:,}: fs.file-max 2097152; {_APPLY}",
        )


def _memory(root: Path) -> Iterator[Finding]:
    """Redis forks for each rewrite of its file: the copy shares its memory, unless the kernel must promise it twice."""
    if (overcommit := _number(root, "vm/overcommit_memory")) is not None:
        yield judge(
            "overcommit",
            f"vm.overcommit_memory {overcommit}",
            warn=overcommit != 1,
            advice=f"rewriting the append-only file may fail where less memory is free than Redis uses: 1; {_APPLY}",
        )
    try:
        pages = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return
    yield judge(
        "huge pages",
        pages.strip(),
        warn="[always]" in pages,
        advice="a write during a rewrite copies 2 MiB at a time: echo madvise > "
        "/sys/kernel/mm/transparent_hugepage/enabled, at each boot (or leave the server's `disable-thp yes` as it is)",
    )


def _text(root: Path, name: str) -> str:
    try:
        return (root / "proc/sys" / name).read_text().strip()
    except OSError:
        return ""


def _number(root: Path, name: str) -> int | None:
    text = _text(root, name)
    return int(text) if text else None
