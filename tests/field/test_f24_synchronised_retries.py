"""F24, synchronised retries and runaway delay: what failed together does not come back together, nor never."""

from collections import Counter, defaultdict

import pytest

from tests.conftest import eventually
from tests.system.rig import Rig
from workers.retry import delay_s

SECOND_NS = 10**9
BASE_S = 1.0
TOGETHER = 500
LONG = (pytest.mark.full, pytest.mark.timeout(400))


@pytest.mark.parametrize("attempt", range(1, 12))
def test_the_delays_of_a_step_are_spread_over_all_of_it(attempt: int) -> None:
    step_s = min(300.0, BASE_S * 2 ** (attempt - 1))
    delays = [delay_s(attempt, base_s=BASE_S, max_s=300) for _ in range(TOGETHER)]
    assert 0 <= min(delays) < 0.1 * step_s
    assert 0.9 * step_s < max(delays) <= step_s
    assert max(Counter(int(each * 10 / step_s) for each in delays).values()) <= 0.2 * TOGETHER


@pytest.mark.parametrize("attempt", [60, 61, 1000, 10**9])
def test_no_delay_passes_the_cap_whatever_the_attempt(attempt: int) -> None:
    delays = [delay_s(attempt, base_s=BASE_S, max_s=300) for _ in range(TOGETHER)]
    assert 270 < max(delays) <= 300
    assert delay_s(attempt, base_s=0, max_s=300) == 0
    assert delay_s(attempt, base_s=BASE_S, max_s=0) == 0


@pytest.mark.full
@pytest.mark.parametrize(("count", "attempts"), [(20, 2), pytest.param(TOGETHER, 6, marks=LONG)])
async def test_jobs_that_fail_together_do_not_come_back_together(rig: Rig, count: int, attempts: int) -> None:
    rig.settings |= {"TASKGATE_HANDLERS": "tests.field.retrying", "TASKGATE_ASYNC_PROCESSES": "0"}
    await rig.worker()
    await rig.gateway()
    ids = [await rig.submit("together", None, max_attempts=attempts) for _ in range(count)]

    due_ms: dict[str, int] = {}
    """Of last attempts, as far as they were seen to wait."""

    async def unfinished() -> int:
        records = [record for record in await rig.store.read(ids) if record is not None]
        due_ms.update({each.id: each.due_ms for each in records if each.due_ms and each.attempt == attempts - 1})
        return sum(record.status != "failed" for record in records)

    await eventually(unfinished, lambda left: left == 0, within_s=300, every_s=0.2)
    starts: dict[int, list[int]] = defaultdict(list)
    for run in rig.runs():
        starts[run.attempt].append(run.start)
    assert {attempt: len(times) for attempt, times in starts.items()} == dict.fromkeys(range(1, attempts + 1), count)
    for attempt in range(2, attempts + 1):
        step_s = BASE_S * 2 ** (attempt - 2)
        assert max(starts[attempt]) - min(starts[attempt]) >= step_s / 2 * SECOND_NS, f"attempt {attempt}"
    if step_s >= 16:  # a second of a shorter step holds too much by itself
        # When they are to start: what a machine that stood still begins at once says nothing of retries.
        assert len(due_ms) > count / 2
        assert max(Counter(ms // 1000 for ms in due_ms.values()).values()) <= 0.2 * count


@pytest.mark.full
async def test_retries_hold_no_slots_while_they_wait(rig: Rig) -> None:
    rig.settings |= {"TASKGATE_HANDLERS": "tests.field.retrying", "TASKGATE_ASYNC_PROCESSES": "0"}
    await rig.worker()
    await rig.gateway()
    ids = [await rig.submit("slowly", None) for _ in range(30)]

    async def waiting() -> int:
        return sum(record is not None and record.status == "retrying" for record in await rig.store.read(ids))

    await eventually(waiting, lambda count: count >= 15, within_s=40)
    assert (await rig.ended(await rig.submit("cpu", {"ms": 1}), within_s=40))["status"] == "succeeded"
    assert await waiting() >= 1
    for task_id in ids:
        await rig.http.post(f"/tasks/{task_id}/cancel")


@pytest.mark.full
async def test_a_bad_delay_is_refused_at_the_door(rig: Rig) -> None:
    """NaN as such is no JSON at all."""
    rig.settings |= {"TASKGATE_HANDLERS": "tests.field.retrying", "TASKGATE_ASYNC_PROCESSES": "0"}
    await rig.worker()
    await rig.gateway()

    async def answer(delay: str) -> int:
        body = f'{{"type":"cpu","payload":{{"ms":1}},"delay_s":{delay}}}'
        headers = {"Content-Type": "application/json"}
        return (await rig.http.post("/tasks", content=body, headers=headers)).status_code

    delays = ("0", "-1", "1e18", '"NaN"', "NaN")
    assert [await answer(delay) for delay in delays] == [202, 422, 422, 422, 400]
