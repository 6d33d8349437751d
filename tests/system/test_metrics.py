"""What dashboard and alert rules name is measured, and under load it is there and moves."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from app.metrics import Metrics
from taskgate.metrics import Family
from tests.conftest import eventually
from tests.system.rig import ROOT, Rig
from tests.system.test_worker_health import port_of
from workers.metrics import Metrics as WorkerMetrics

RULES = ROOT / "deploy" / "prometheus" / "taskgate.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "taskgate.json"
COUNTED = ("_total", "_bucket", "_sum", "_count")
OF_PROMETHEUS = {"up"}
"""What it says itself of those that it scrapes."""


def expressions() -> Iterator[tuple[str, str]]:
    """Every one of the rules and of the dashboard, with where it stands."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            # Grafana puts a duration there.
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m")


def named(expression: str) -> list[tuple[str, dict[str, str]]]:
    """The metrics that it reads, with the labels that must have a certain value."""
    found: list[tuple[str, dict[str, str]]] = []

    def look(node: Any) -> None:
        match node:
            case promql_parser.VectorSelector():
                given = node.matchers.matchers
                equal = {one.name: one.value for one in given if one.op == promql_parser.MatchOp.Equal}
                found.append((str(node.name), {name: value for name, value in equal.items() if name != "job"}))
            case promql_parser.MatrixSelector():
                look(node.vector_selector)
            case promql_parser.BinaryExpr():
                look(node.lhs)
                look(node.rhs)
            case promql_parser.AggregateExpr() | promql_parser.ParenExpr() | promql_parser.UnaryExpr():
                look(node.expr)
            case promql_parser.Call():
                for inner in node.args:
                    look(inner)
            case _:
                assert isinstance(node, promql_parser.NumberLiteral), node

    look(promql_parser.parse(expression))
    return found


@pytest.mark.parametrize("expression", [pytest.param(expression, id=where) for where, expression in expressions()])
def test_every_expression_is_understood_and_names_only_what_is_told(expression: str) -> None:
    families = [*Metrics(set()).families(), *WorkerMetrics().families()]
    known = {name for each in families for name in names_of(each)} | OF_PROMETHEUS

    assert {name for name, _ in named(expression)} <= known


def names_of(family: Family) -> list[str]:
    """Of its samples."""
    if family.kind != "histogram":
        return [family.name]
    return [f"{family.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")]


def test_every_alert_says_what_is_wrong_and_where_more_is_said() -> None:
    sections = {
        "docs/observe.md#" + re.sub(r"[^a-z -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in (ROOT / "docs" / "observe.md").read_text().splitlines()
        if line.startswith("#")
    }

    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"], rule["alert"]
            assert rule["annotations"]["runbook"] in sections, rule["alert"]


def test_what_compares_waits_and_cpu_of_tasks_does_so_for_all_pools() -> None:
    told = [expression for _, expression in expressions() if "run_queue_wait" in expression]

    assert len(told) == 2
    assert all('{process=~"sync|async|alone"}' in expression for expression in told)


def test_every_metric_is_explained() -> None:
    explained = (ROOT / "docs" / "observe.md").read_text()

    families = [*Metrics(set()).families(), *WorkerMetrics().families()]

    assert [each.name for each in families if f"`{each.name}" not in explained] == []


async def scraped(*urls: str) -> list[Sample]:
    samples = []
    async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
        for url in urls:
            answer = await http.get(f"{url}/metrics")
            assert answer.status_code == 200, answer.text
            samples += [one for family in text_string_to_metric_families(answer.text) for one in family.samples]
    return samples


@pytest.mark.full
@pytest.mark.timeout(240)
async def test_all_that_they_read_is_there_under_load_and_moves(rig: Rig) -> None:
    """But for what only trouble brings that nobody can order: a claim handed back, something left behind."""
    rare = {"taskgate_tasks_handed_back_total", "taskgate_tasks_left_something_total", *OF_PROMETHEUS}
    quiet = {"taskgate_redis_errors_total", "taskgate_stale_writes_total"}  # there, and 0 while all is well
    wanted = {
        (name, frozenset(labels.items()))
        for _, expression in expressions()
        for name, labels in named(expression)
        if name not in rare
    }
    await rig.worker(TASKGATE_WORKER_HEALTH_PORT="0")
    await rig.gateway()
    supervisor = await port_of(rig.folder)
    await rig.submit("stubborn", {}, timeout_s=3)  # killed 5 s after its soft signal; by then it must be deaf
    for task_type in ("fails", "raises", "exits"):
        await rig.submit(task_type, {})
    unique = [await rig.submit("cpu", {"ms": 20}, unique_key="one", delay_s=30) for _ in range(2)]
    assert len(set(unique)) == 1
    assert (await rig.http.post(f"/tasks/{unique[0]}/cancel")).status_code == 200
    task_id = await rig.submit("cpu", {"ms": 20})
    refused = await rig.http.post("/tasks", json={"type": "nobody's", "payload": {}})
    assert refused.status_code == 422
    async with rig.http.stream("GET", f"/tasks/{task_id}/events", timeout=60) as stream:
        await stream.aread()

    async def missing() -> set[tuple[str, frozenset[tuple[str, str]]]]:
        for _ in range(2):
            await rig.http.get(f"/tasks/{task_id}")
        samples = await scraped(rig.url, supervisor)
        moved = [s for s in samples if s.value > 0 or not s.name.endswith(COUNTED) or s.name in quiet]
        return {each for each in wanted if not any(each[0] == s.name and each[1] <= s.labels.items() for s in moved)}

    await eventually(missing, lambda missing: not missing, within_s=90)
