"""What our user in Redis may: exactly what scripts and store need, and the documentation says that."""

import re
from pathlib import Path

from taskgate.contract.acl import COMMANDS, RULES
from taskgate.contract.script import FOLDER

ROOT = Path(__file__).parents[2]


def used_by_scripts() -> set[str]:
    """With the subcommand where there is one."""
    text = "\n".join(path.read_text() for path in FOLDER.rglob("*.lua"))
    calls = re.findall(r'redis\.p?call\(\s*"([A-Za-z]+)"(?:,\s*"([A-Z]+)")?', text)
    containers = {name.partition("|")[0] for name in COMMANDS if "|" in name}
    return {f"{name}|{sub}".lower() if name.lower() in containers else name.lower() for name, sub in calls}


def used_by_code() -> set[str]:
    text = "\n".join(path.read_text() for path in (ROOT / "taskgate" / "contract").glob("*.py"))
    return {name.lower() for name in re.findall(r'"([A-Z]{3,})"', text)}


def test_every_command_of_a_script_is_allowed() -> None:
    assert used_by_scripts() - COMMANDS == set()


def test_nothing_is_allowed_that_nobody_needs() -> None:
    by_the_client = {
        *("auth", "client|setname", "ping", "select", "info", "config|get", "pubsub|numsub"),
        *("subscribe", "unsubscribe", "publish", "xinfo|stream", "eval", "evalsha", "time"),
    }
    assert COMMANDS - used_by_scripts() - used_by_code() - by_the_client == set()


def test_the_documentation_gives_that_rule() -> None:
    assert f"{' '.join(RULES)}\n" in (ROOT / "docs" / "security.md").read_text()
