"""Dead letters on the running service: what killed each attempt; redriving many, which fail again at once."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from tests.conftest import Server, eventually
from tests.system.rig import Rig, serving
from tests.system.test_cli import taskgate

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(module_server: Server, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with serving(module_server, tmp_path_factory.mktemp("service")) as rig:
        yield rig


async def letters(rig: Rig, **filters: Any) -> list[dict[str, Any]]:
    answer = await rig.http.get("/dead-letters", params={"limit": 200, **filters})
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def dead(rig: Rig, task_type: str, count: int, payload: Any) -> list[str]:
    before = await kept(rig)
    ids = [await rig.submit(task_type, payload) for _ in range(count)]
    await eventually(lambda: kept(rig), lambda found: found == before + count, within_s=120)
    return ids


async def kept(rig: Rig) -> int:
    return await rig.store.count_letters(0, "default", since_ms=None, before_ms=10**15)


async def test_each_death_stands_in_the_history_also_of_before_a_redrive(service: Rig) -> None:
    [task_id] = await dead(service, "exits", 1, {})
    await taskgate(service, "redrive", task_id)
    await eventually(lambda: letters(service, type="exits"), lambda found: found, within_s=60)

    shown = await taskgate(service, "dead-letter", task_id, "--json")
    attempts = json.loads(shown.stdout)["attempts"]
    assert [one["attempt"] for one in attempts] == [1, 2, 1, 2]
    assert [one["redriven_at"] is None for one in attempts] == [True, True, False, False]
    for one in attempts:
        assert (one["error"]["kind"], one["error"]["exit_code"]) == ("crash", 7)
        assert one["rss_peak_bytes"] is None or one["rss_peak_bytes"] > 1 << 20, "below that of the supervisor: unknown"
        assert one["worker"]
    drawn = (await taskgate(service, "dead-letter", task_id)).stdout
    assert drawn.count("crash: the child exited with code 7") == 4
    assert drawn.count("── redriven") == 1


async def test_an_exception_is_told_with_its_traceback(service: Rig) -> None:
    [task_id] = await dead(service, "raises", 1, {"n": 1})
    drawn = (await taskgate(service, "dead-letter", task_id)).stdout
    assert drawn.count("exception: as asked") == 2
    assert drawn.count('raise ValueError("as asked")') == 2


@pytest.mark.parametrize("count", [40, pytest.param(1_500, marks=pytest.mark.full)])
async def test_all_are_redriven_once_each_though_they_fail_again_at_once(service: Rig, count: int) -> None:
    """What fails again while the command goes on is not redriven by it, or it would never end."""
    ids = set(await dead(service, "fails", count, {}))
    total = await kept(service)
    before = {each: (await service.task(each))["version"] for each in list(ids)[:20]}
    done = await taskgate(service, "redrive", "--type", "fails", "--json")
    assert json.loads(done.stdout) == {"redriven": count, "refused": 0, "skipped": 0}
    await eventually(lambda: kept(service), lambda found: found == total, within_s=120)
    for task_id, version in before.items():
        history = (await service.http.get(f"/dead-letters/{task_id}")).json()
        assert len(history["attempts"]) == 2
        assert history["version"] > version

    purged = await taskgate(service, "purge", "--type", "fails", "--yes", "--json")
    assert json.loads(purged.stdout) == {"deleted": count}
    assert await letters(service, type="fails") == []


async def test_at_a_rate_they_start_no_faster(service: Rig) -> None:
    await dead(service, "fails", 6, {})
    asked_at = datetime.now(UTC)
    done = await taskgate(service, "redrive", "--type", "fails", "--rate", "2")
    assert done.stdout == "6 redriven\n"
    found = await eventually(lambda: letters(service, type="fails"), lambda found: len(found) == 6, within_s=60)
    last = max(found, key=lambda each: str(each["started_at"]))
    [*_, attempt] = (await service.http.get(f"/dead-letters/{last['id']}")).json()["attempts"]
    assert attempt["redriven_at"] is not None
    started_at = datetime.fromisoformat(attempt["started_at"])
    assert (started_at - asked_at).total_seconds() > 2.49, "the sixth is due 2.5 s after the first"
    await taskgate(service, "purge", "--type", "fails", "--yes")
