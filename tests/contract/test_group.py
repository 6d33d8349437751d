"""group: what arrives while a call is under way goes together in the next one."""

import asyncio
from collections.abc import Sequence

import pytest

from taskgate.contract.group import Group
from tests.conftest import eventually


@pytest.fixture(autouse=True)
def _all_agrees() -> None:
    """No server here."""


class Calls:
    """A call that waits for `go` and answers every item with itself, doubled."""

    def __init__(self) -> None:
        self.made: list[list[int]] = []
        self.go = asyncio.Event()
        self.errors: dict[int, Exception] = {}
        """By number of the call, from 1."""

    async def __call__(self, items: Sequence[int]) -> Sequence[int]:
        self.made.append(list(items))
        error = self.errors.get(len(self.made))
        await self.go.wait()
        if error is not None:
            raise error
        return [item * 2 for item in items]


async def _under_way(calls: Calls, count: int = 1) -> None:
    async def made() -> int:
        return len(calls.made)

    await eventually(made, lambda number: number >= count, every_s=0)


async def test_what_arrives_during_a_call_goes_together_in_order() -> None:
    calls = Calls()
    group = Group(calls)
    first = group(0)
    await _under_way(calls)
    others = [group(n) for n in (1, 2, 3)]
    calls.go.set()

    assert await asyncio.gather(first, *others) == [0, 2, 4, 6]
    assert calls.made == [[0], [1, 2, 3]]


async def test_items_of_one_moment_go_together() -> None:
    calls = Calls()
    calls.go.set()
    group = Group(calls)
    assert await asyncio.gather(*(group(n) for n in range(5))) == [0, 2, 4, 6, 8]
    assert calls.made == [[0, 1, 2, 3, 4]]


async def test_an_idle_group_starts_again() -> None:
    calls = Calls()
    calls.go.set()
    group = Group(calls)
    assert [await group(1), await group(2)] == [2, 4]
    assert calls.made == [[1], [2]]


async def test_a_call_carries_a_bounded_number_of_items() -> None:
    calls = Calls()
    calls.go.set()
    group = Group(calls, max_items=2)
    await asyncio.gather(*(group(n) for n in range(5)))
    assert calls.made == [[0, 1], [2, 3], [4]]


async def test_a_call_carries_a_bounded_number_of_bytes_and_at_least_one_item() -> None:
    calls = Calls()
    calls.go.set()
    group = Group(calls, size=lambda item: item, max_bytes=10)
    await asyncio.gather(*(group(n) for n in (5, 5, 1, 50, 9)))
    assert calls.made == [[5, 5], [1], [50], [9]]


async def test_who_hangs_up_does_not_stop_the_call_for_the_others() -> None:
    calls = Calls()
    group = Group(calls)
    gone, stays = group(1), group(2)
    await _under_way(calls)
    gone.cancel()
    calls.go.set()
    assert await stays == 4
    assert calls.made == [[1, 2]]


async def test_an_item_whose_caller_hung_up_before_the_call_is_sent_all_the_same() -> None:
    calls = Calls()
    group = Group(calls)
    first = group(0)
    await _under_way(calls)
    group(1).cancel()
    last = group(2)
    calls.go.set()
    await first
    await last
    assert calls.made == [[0], [1, 2]]


async def test_an_error_reaches_everybody_in_its_group_and_nobody_else() -> None:
    calls = Calls()
    calls.errors = {1: ConnectionError("away")}
    group = Group(calls)
    failing = [group(1), group(2)]
    await _under_way(calls)
    later = group(3)
    calls.go.set()
    for future in failing:
        with pytest.raises(ConnectionError, match="away"):
            await future
    assert await later == 6


async def test_a_call_that_answers_too_little_fails_its_group() -> None:
    async def short(items: Sequence[int]) -> Sequence[int]:
        return items[:-1]

    group = Group(short)
    with pytest.raises(AssertionError, match="1 results for 2 items"):
        await asyncio.gather(group(1), group(2))


async def test_when_the_loop_ends_nobody_is_left_waiting() -> None:
    calls = Calls()
    group = Group(calls)
    sent = group(1)
    await _under_way(calls)
    waiting = group(2)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    for future in (sent, waiting):
        with pytest.raises(asyncio.CancelledError):
            await future


async def test_who_has_waited_for_too_long_is_told_so_and_the_call_goes_on() -> None:
    calls = Calls()
    group = Group(calls, within_s=0.05)
    sent = group(1)
    await _under_way(calls)
    behind = group(2)
    told, _ = await asyncio.wait([sent, behind], timeout=10)
    assert {type(each.exception()) for each in told} == {TimeoutError}
    assert len(told) == 2
    calls.go.set()
    await _under_way(calls, 2)
    assert calls.made == [[1], [2]]


async def test_the_time_of_each_item_is_its_own() -> None:
    calls = Calls()
    group = Group(calls, within_s=0.3)
    first = group(1)
    await asyncio.wait([first], timeout=0.2)
    second = group(2)
    await asyncio.wait([first], timeout=10)
    assert isinstance(first.exception(), TimeoutError)
    await asyncio.wait([second], timeout=10)
    assert isinstance(second.exception(), TimeoutError)
    third = group(3)
    calls.go.set()
    assert await third == 6
