"""The Valkey of docker-compose.yml is set up like the embedded one."""

import re
from pathlib import Path

from taskgate import embedded

ROOT = Path(__file__).parents[2]
PLACES = {"port", "unixsocket", "unixsocketperm", "dir", "logfile"}
"""Where it is and who reaches it: a container's own business."""


def test_compose_gives_valkey_the_options_of_the_embedded_one() -> None:
    lines = [line.split(None, 1) for line in embedded._CONFIGURATION.splitlines() if not line.startswith("#")]
    wanted = {name: value for name, value in lines if name not in PLACES}

    command = re.search(r"valkey-server (.+?)\n    \w", (ROOT / "docker-compose.yml").read_text(), re.DOTALL)
    assert command
    given = dict(re.findall(r"--([a-z-]+) (\S+)", command[1]))

    assert {name: given.get(name) for name in wanted} == wanted
