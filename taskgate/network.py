"""What servers and clients alike must know of addresses and headers. Apart from `platform`, which every child loads."""

import functools
import ipaddress

HEADER_RULE = "printable ASCII without spaces around it"


def is_loopback(host: str | None) -> bool:
    """Reached from this machine alone. Of names only `localhost`: any other may mean any address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


@functools.lru_cache(64)
def is_site(host: bytes) -> bool:
    """Whether a Host header is a name whose owner may let it mean this machine: no address, and none without a dot."""
    name = host.partition(b":")[0].rstrip(b". ").lower()
    _, dot, last = name.rpartition(b".")
    return bool(dot) and last != b"localhost" and not last.isdigit()


def fits_header(value: str) -> bool:
    """Arrives as it was sent: spaces around it would not, and other signs mean something else to each reader."""
    return value.isascii() and value.isprintable() and value == value.strip()
