"""ids: UUIDv7 in order, the partition in the last byte, names that are safe in keys."""

import re
import threading
import time
import uuid
from collections import Counter

import pytest

from taskgate.contract.ids import (
    is_name,
    is_task_id,
    made_at_ms,
    new_task_id,
    new_worker_id,
    partition_byte,
    partition_of,
)

ID = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture(autouse=True)
def _all_agrees() -> None:
    """No server here."""


def test_ids_of_one_process_grow() -> None:
    ids = [new_task_id() for _ in range(10_000)]
    assert ids == sorted(set(ids))


def test_ids_of_several_threads_are_unique_and_grow_in_each() -> None:
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda mine=mine: mine.extend(new_task_id() for _ in range(2000))) for mine in made
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in made)
    assert len({task_id for mine in made for task_id in mine}) == 8000


def test_an_id_is_a_version_7_uuid_of_now() -> None:
    before = time.time_ns() // 1_000_000
    parsed = uuid.UUID(task_id := new_task_id())
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert str(parsed) == task_id
    assert is_task_id(task_id)
    # A burst before may have taken the counter some milliseconds ahead.
    assert before <= made_at_ms(task_id) <= time.time_ns() // 1_000_000 + 10


def test_the_time_of_a_known_id() -> None:
    assert made_at_ms("017f22e2-79b0-7cc3-98c4-dc0c0c07398f") == 0x017F22E279B0  # RFC 9562, appendix A.6


def test_without_a_byte_given_partitions_are_even() -> None:
    counts = Counter(partition_of(new_task_id(), 4) for _ in range(8000))
    assert set(counts) == {0, 1, 2, 3}
    assert all(1700 < count < 2300 for count in counts.values()), counts


@pytest.mark.parametrize("byte", [0, 1, 128, 255])
def test_a_given_byte_decides_the_partition(byte: int) -> None:
    ids = [new_task_id(byte) for _ in range(100)]
    assert {partition_of(task_id, 256) for task_id in ids} == {byte}
    assert {partition_of(task_id, 3) for task_id in ids} == {byte % 3}
    assert len(set(ids)) == 100


def test_one_partition_holds_all() -> None:
    assert {partition_of(new_task_id(), 1) for _ in range(100)} == {0}


def test_what_must_lie_together_has_the_same_byte_and_spreads_otherwise() -> None:
    assert partition_byte("a", "k") == partition_byte("a", "k")
    assert partition_byte("a", "bc") != partition_byte("ab", "c")
    assert len({partition_byte("a", str(n)) for n in range(2000)}) == 256


@pytest.mark.parametrize(
    "text",
    [
        ID.upper(),
        ID.replace("-", ""),
        ID + "\n",
        ID[:-1],
        f"{{{ID}}}",
        ID.replace("-7", "-4"),
        ID.replace("-b", "-c"),
        "",
    ],
)
def test_other_spellings_are_no_task_ids(text: str) -> None:
    assert is_task_id(ID)
    assert not is_task_id(text)


@pytest.mark.parametrize("text", ["", "a:b", "a b", "a\n", "ä", "x" * 65, "{0}", "a/b", "*"])
def test_what_would_break_a_key_is_no_name(text: str) -> None:
    assert is_name("report.pdf_2-x")
    assert is_name("x" * 64)
    assert not is_name(text)


def test_worker_ids_are_unique_and_safe_in_keys() -> None:
    ids = {new_worker_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9-]+", worker_id) for worker_id in ids)
