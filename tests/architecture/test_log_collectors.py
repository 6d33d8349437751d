"""deploy/loki: what Alloy reads is in our lines, what it names is there, and Loki takes it."""

import re
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
ALLOY = (DEPLOY / "loki" / "alloy.alloy").read_text()
LOKI = yaml.safe_load((DEPLOY / "loki" / "loki.yml").read_text())


def test_what_is_extracted_is_what_lines_are_called() -> None:
    [extracted] = re.findall(r"expressions = \{(.*)\}", ALLOY)
    fields = dict(re.findall(r'(\w+)\s*= "(\w+)"', extracted))

    assert fields == {"level": "level", "task_id": "task_id", "request_id": "request_id", "at": "timestamp"}
    assert re.findall(r'source = "(\w+)"', ALLOY) == ["at"]
    for block in ("labels", "structured_metadata"):
        [values] = re.findall(rf"stage\.{block} {{\s*values = {{(.*)}}", ALLOY)
        assert set(re.findall(r"(\w+) =", values)) <= fields.keys()
        assert ("task_id" in values) is (block == "structured_metadata"), "a label for each task is a series for each"


def test_every_component_that_is_named_is_there_and_braces_close() -> None:
    there = {f"{kind}.{name}" for kind, name in re.findall(r'^([\w.]+) "(\w+)" {$', ALLOY, re.MULTILINE)}
    named = re.findall(r"\b([\w.]+)\.(?:targets|output|receiver)\b", ALLOY)

    assert len(named) == 4
    assert set(named) <= there
    assert ALLOY.count("{") == ALLOY.count("}")


def test_services_and_addresses_are_those_of_compose() -> None:
    services = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]
    observers = yaml.safe_load((DEPLOY / "observe.yml").read_text())["services"]
    [kept] = re.findall(r'regex\s*= "(.*)"', ALLOY)
    url = f"http://loki:{LOKI['server']['http_listen_port']}"
    sources = yaml.safe_load((DEPLOY / "grafana" / "datasources.yml").read_text())["datasources"]

    assert set(kept.split("|")) <= services.keys()
    assert re.findall(r'url = "(.*)"', ALLOY) == [f"{url}/loki/api/v1/push"]
    assert [source["url"] for source in sources if source["type"] == "loki"] == [url]
    assert {"loki", "alloy"} == {name for name, one in observers.items() if one["profiles"] == ["logs"]}


def test_loki_takes_structured_metadata_and_lets_lines_go() -> None:
    [schema] = LOKI["schema_config"]["configs"]
    assert (schema["store"], schema["schema"]) == ("tsdb", "v13"), "older ones have no structured metadata"
    assert LOKI["limits_config"]["allow_structured_metadata"] is True
    assert LOKI["limits_config"]["retention_period"] == "168h"
    assert LOKI["compactor"]["retention_enabled"] is True
