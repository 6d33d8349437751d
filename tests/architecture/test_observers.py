"""deploy/observe.yml: what its services mount is there, and they look where the service answers."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def services(*files: str) -> dict[str, dict[str, Any]]:
    return {
        name: each for file in files for name, each in yaml.safe_load((ROOT / file).read_text())["services"].items()
    }


OBSERVERS = services("deploy/observe.yml")


@pytest.mark.parametrize("name", OBSERVERS)
def test_an_observer_starts_only_when_it_is_asked_for_and_mounts_what_is_there(name: str) -> None:
    assert OBSERVERS[name]["profiles"] in (["metrics"], ["logs"])
    for mounted in OBSERVERS[name]["volumes"]:
        source = mounted.split(":")[0]
        assert not source.startswith("./") or (ROOT / source).exists(), mounted


@pytest.mark.parametrize("name", OBSERVERS)
def test_nobody_but_this_machine_reaches_an_observer(name: str) -> None:
    assert all(published.startswith("127.0.0.1:") for published in OBSERVERS[name].get("ports", ()))


def test_prometheus_scrapes_each_part_where_it_answers_and_with_its_key() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    parts = services("docker-compose.yml")

    for job in jobs:
        [target] = job["dns_sd_configs"]
        [part] = target["names"]
        assert job["job_name"] == f"taskgate-{part}"
        assert job["authorization"]["credentials_file"] == parts[part]["environment"]["TASKGATE_API_KEY_FILE"]
        assert set(OBSERVERS["prometheus"]["networks"]) & set(parts[part].get("networks", ["inside"]))
    ports = {job["dns_sd_configs"][0]["port"] for job in jobs}
    [exposed] = re.findall(r"^EXPOSE (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert ports == set(map(int, exposed.split()))


def test_prometheus_loads_the_rules_and_grafana_the_dashboard() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["rule_files"]
    [provider] = yaml.safe_load((DEPLOY / "grafana/dashboards.yml").read_text())["providers"]
    mounted = {target: Path(source) for source, target, *_ in (each.split(":") for each in _mounts())}

    assert [mounted[str(Path(rule).parent)] / Path(rule).name for rule in rules] == [
        Path("deploy/prometheus/taskgate.rules.yml")
    ]
    assert mounted[f"{provider['options']['path']}/taskgate.json"] == Path("deploy/grafana/taskgate.json")


def _mounts() -> list[str]:
    return [mounted for each in OBSERVERS.values() for mounted in each["volumes"]]
