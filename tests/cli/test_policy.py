"""The policy file: what it may say, which mistakes are told, and that docs/policy.md is true."""

import re
from pathlib import Path

import pytest

from taskgate import handlers, policy, settings
from taskgate.policy import PolicyError, QueuePolicy, TenantPolicy

DOCS = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()


def said(tmp_path: Path, text: str) -> policy.Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return policy.load(path)


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL))
def test_every_example_of_the_page_is_a_policy(tmp_path: Path, block: str) -> None:
    found = said(tmp_path, block)
    assert found.queues or found.tenants
    settings.load({}, policy_file=tmp_path / "policy.toml")


@pytest.mark.usefixtures("own_handlers")
@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL))
def test_the_handlers_of_the_page_are_handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str) -> None:
    (tmp_path / "page_of_policy.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    found = handlers.load(["page_of_policy"])
    assert (found["crm.sync"].options.concurrency, found["shop.push"].options.concurrency_per_key) == (2, 2)


@pytest.mark.parametrize(("heading", "model"), [("in `[queues.", QueuePolicy), ("in `[tenants.", TenantPolicy)])
def test_the_page_names_every_member_and_no_other(heading: str, model: type[QueuePolicy | TenantPolicy]) -> None:
    table = DOCS[DOCS.index(f"| {heading}") :].split("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == model.model_fields.keys()


def test_what_a_named_one_leaves_out_is_that_of_all_others(tmp_path: Path) -> None:
    found = said(tmp_path, '[tenants."*"]\nrate_per_s = 5\nconcurrency = 2\n[tenants.gold]\nconcurrency = 9\n')
    assert (found.tenant("gold").rate_per_s, found.tenant("gold").concurrency) == (5, 9)
    assert (found.tenant("other").rate_per_s, found.tenant("other").concurrency) == (5, 2)
    assert not found.weighs


@pytest.mark.parametrize(
    ("text", "weighs"),
    [
        ("", False),
        ('[tenants."*"]\nweight = 2\n', False),
        ('[tenants."*"]\nweight = 2\n[tenants.a]\n', False),
        ("[tenants.a]\nweight = 2\n", True),
        ('[tenants."*"]\nweight = 2\n[tenants.a]\nweight = 1\n', True),
    ],
)
def test_equal_weights_are_none(tmp_path: Path, text: str, weighs: bool) -> None:
    assert said(tmp_path, text).weighs is weighs


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("queues = 3", "queues: "),
        ("[queues.mail]\nlimit_task = 3", "queues.mail.limit_task: Extra inputs"),
        ("[queues.mail]\nlimit_tasks = 0", "queues.mail.limit_tasks: "),
        ("[queues.mail]\nlimit_wait_s = inf", "queues.mail.limit_wait_s: "),
        ('[queues.mail]\non_full = "drop"', "queues.mail.on_full: "),
        ("[queues.mail]\nconcurrency = 3", "queues.mail.concurrency: Extra inputs"),
        ('[queues."a b"]\n', "names have"),
        ("[tenants.a]\nweight = 0", "tenants.a.weight: "),
        ("[tenants.a]\nrate_per_s = nan", "tenants.a.rate_per_s: "),
        ("[tenants.a", "Expected ']'"),
        ("[limits]\n", "limits: Extra inputs"),
    ],
)
def test_each_mistake_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(told)):
        said(tmp_path, text)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="No such file"):
        policy.load(tmp_path / "nowhere.toml")
    with pytest.raises(settings.SettingsError, match=r"TASKGATE_POLICY_FILE: .*No such file"):
        settings.load({}, policy_file=tmp_path / "nowhere.toml")
