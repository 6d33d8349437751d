"""Events of handlers' own: nothing is lost without a gap in its place, and what waits is bounded."""

import json
from collections.abc import Iterable

from taskgate.attempt import EMITS_A_S, EMITS_AT_ONCE, MAX_EMIT_BYTES_A_S
from workers.emits import ALL_BYTES, MOST_OWN_BYTES, MOST_WAITING, OWN_BYTES, Emits
from workers.pace import Pace
from workers.wire import Emitted

KIB = b'"' + b"x" * 1022 + b'"'


class Taken:
    """What one attempt has waiting."""

    def __init__(self, others: Iterable[Emits] = ()) -> None:
        self.emits = Emits()
        self.others = [self.emits, *others]
        self.events: list[tuple[str, bytes]] = []

    def take(self, n: int, data: bytes = b"{}", name: str = "token") -> None:
        self.emits.take(Emitted(1, n, name, data), self.events, others=self.others)

    def told(self) -> list[object]:
        """The numbers of events, and how many are lost between them as `lost N`."""
        shown = [(name, json.loads(data)) for name, data in self.events]
        return [data["n"] if name == "custom" else f"lost {data['lost']}" for name, data in shown]


def test_numbers_that_are_missing_are_a_gap_in_their_place() -> None:
    taken = Taken()
    for n in (1, 2, 5, 6):
        taken.take(n)
    taken.emits.tell_gap(taken.events, before=9)
    assert taken.told() == [1, 2, "lost 2", 5, 6, "lost 2"]


def test_a_loss_is_told_before_the_next_event_comes() -> None:
    taken = Taken()
    taken.take(1)
    taken.take(4, b"", name="")
    taken.emits.tell_gap(taken.events)
    taken.emits.tell_gap(taken.events)
    assert taken.told() == [1, "lost 3"]
    taken.take(5)
    assert taken.told() == [1, "lost 3", 5]


def test_so_many_wait_and_the_others_are_counted() -> None:
    taken = Taken()
    for n in range(1, MOST_WAITING + 8):
        taken.take(n)
    assert taken.told() == list(range(1, MOST_WAITING + 1))
    taken.emits.written(0, 0)
    taken.take(MOST_WAITING + 8)
    assert taken.told()[MOST_WAITING:] == ["lost 7", MOST_WAITING + 8]


def test_one_may_have_much_waiting_and_each_a_little() -> None:
    taken = Taken()
    for n in range(1, MOST_OWN_BYTES // 8192 + 9):
        taken.take(n, KIB * 8)
    assert taken.emits.bytes <= MOST_OWN_BYTES
    assert taken.emits.bytes > MOST_OWN_BYTES - 16_384

    crowd = [Emits() for _ in range(ALL_BYTES // OWN_BYTES)]
    for each in crowd:
        each.written(1, OWN_BYTES)
    late = Taken(crowd)
    for n in range(1, MOST_WAITING):
        late.take(n, KIB * 2)
    assert OWN_BYTES - 4096 <= late.emits.bytes <= OWN_BYTES, "its own share, and no more"


def test_a_stream_of_tokens_is_within_the_pace() -> None:
    """50 a second of 2 KiB each."""
    now = [0.0]
    pace = Pace(lambda: now[0])
    for _ in range(5_000):
        now[0] += 0.02
        assert pace.admits(2_048)


def test_the_pace_bounds_number_and_bytes() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert sum(pace.admits(10) for _ in range(5_000)) == EMITS_AT_ONCE
    now[0] += 1
    assert sum(pace.admits(10) for _ in range(5_000)) == EMITS_A_S
    now[0] += 100
    assert sum(pace.admits(16_384) for _ in range(5_000)) == MAX_EMIT_BYTES_A_S // 16_384


def test_a_loss_is_said_four_times_a_second() -> None:
    now = [1.0]
    pace = Pace(lambda: now[0])
    said = 0
    for _ in range(1_000):
        now[0] += 0.001
        pace.admits(1 << 30)
        said += pace.tells_loss()
    assert said == 4


def test_a_rate_just_above_the_limit_does_not_fill_the_story_with_gaps() -> None:
    """Twice as many as are admitted, evenly: a few gaps a second, and as many events as the limit allows."""
    now = [0.0]
    pace, taken = Pace(lambda: now[0]), Taken()
    for n in range(1, 4_001):
        now[0] += 1 / (2 * EMITS_A_S)
        if pace.admits(10):
            taken.emits.written(0, 0)
            taken.take(n)
    told = taken.told()
    assert abs(sum(isinstance(each, int) for each in told) - (EMITS_AT_ONCE + EMITS_A_S * 10)) < EMITS_A_S / 4
    assert sum(isinstance(each, str) for each in told) <= 4 * 10
