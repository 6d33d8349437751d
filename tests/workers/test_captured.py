"""Frames are taken apart wherever they were cut, and what is kept of output is the newest, whole and counted."""

import json
import random
from typing import Any

import pytest

from workers.frames import LOG, STDERR, STDOUT, Frames, frames, new_mark
from workers.output import ENTRY_BYTES, KEPT_BYTES, KEPT_PIECES, Captured
from workers.wire import Printed


def _runs(found: list[Printed]) -> list[tuple[int, str, bytes]]:
    """Neighbours of one task and stream as one."""
    runs: list[tuple[int, str, bytes]] = []
    for one in found:
        if runs and runs[-1][:2] == (one.seq, one.stream):
            runs[-1] = one.seq, one.stream, runs[-1][2] + one.data
        else:
            runs.append((one.seq, one.stream, one.data))
    return runs


@pytest.mark.parametrize("seed", range(20))
def test_frames_and_raw_output_come_out_as_they_went_in_wherever_they_are_cut(seed: int) -> None:
    chance, mark = random.Random(seed), new_mark()
    wanted: list[Printed] = []
    pipe = b""
    for _ in range(40):
        data = chance.choice([b"x", b"\0", mark[:5], b"\0" + mark, b"lines\n" * 3, chance.randbytes(9000)])
        if chance.random() < 0.5 and mark not in data:
            wanted.append(Printed(7, "stdout", data))
            pipe += data + b"."
            wanted.append(Printed(7, "stdout", b"."))
        else:
            seq, stream = chance.choice([1, 2**40]), chance.choice([STDOUT, STDERR, LOG])
            wanted.append(Printed(seq, ("stdout", "stderr", "log")[stream], data))
            pipe += b"".join(frame for frame, _ in frames(mark, stream, seq, data))
    reader, found = Frames(mark, STDOUT), []
    while pipe:
        cut = chance.choice([1, 2, 17, 4096, 65536])
        found += reader.feed(pipe[:cut], 7)
        pipe = pipe[cut:]
    assert _runs(found + reader.rest(7)) == _runs(wanted)


def test_no_frame_is_larger_than_what_a_pipe_takes_whole() -> None:
    written = list(frames(new_mark(), STDERR, 1, b"x" * 10_000))
    assert max(len(frame) for frame, _ in written) == 4096
    assert sum(size for _, size in written) == 10_000


def test_a_beginning_of_a_frame_that_nothing_follows_is_output() -> None:
    mark = new_mark()
    reader = Frames(mark, STDERR)
    assert reader.feed(b"x" + mark[:3], 5) == [Printed(5, "stderr", b"x")]
    assert reader.rest(5) == [Printed(5, "stderr", mark[:3])]


def _shown(captured: Captured, *, whole: bool = True) -> list[dict[str, Any]]:
    entries, _ = captured.take(2, whole=whole)
    decoded = [json.loads(data) for data, _ in entries]
    assert all(size <= ENTRY_BYTES for _, size in entries)
    return decoded


def test_entries_tell_attempt_stream_and_time_and_keep_the_order() -> None:
    captured = Captured()
    for stream, data in (("stdout", b"a"), ("stdout", b"b\n"), ("stderr", b"c\n"), ("stdout", b"d\n")):
        captured.add(Printed(1, stream, data), 1_000_000_000_123)
    assert _shown(captured) == [
        {"attempt": 2, "stream": stream, "at": "2001-09-09T01:46:40.123Z", "text": text}
        for stream, text in (("stdout", "ab\n"), ("stderr", "c\n"), ("stdout", "d\n"))
    ]
    assert not captured.waits(whole=True)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xfe garbage \x00", "\\xff\\xfe garbage \x00"),
        ("é \U0001f600".encode(), "é \U0001f600"),
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        (b"\xed\xa0\x80 lone surrogate", "\\xed\\xa0\\x80 lone surrogate"),
        (b"cut \xe2\x82", "cut \\xe2\\x82"),
    ],
)
def test_whatever_is_printed_is_readable_json(data: bytes, text: str) -> None:
    captured = Captured()
    captured.add(Printed(1, "stdout", data), 0)
    assert [entry["text"] for entry in _shown(captured)] == [text]


def test_a_character_that_is_cut_waits_for_its_rest() -> None:
    captured = Captured()
    captured.add(Printed(1, "stdout", b"a\xe2\x82"), 0)
    assert [entry["text"] for entry in _shown(captured, whole=False)] == ["a"]
    assert not captured.waits(whole=False)
    captured.add(Printed(1, "stdout", b"\xac"), 0)
    assert [entry["text"] for entry in _shown(captured, whole=False)] == ["€"]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("line", [10, 4095, 5000, 100_000])
def test_long_output_is_cut_at_lines_or_else_at_characters_and_joined_it_is_whole(line: int, whole: bool) -> None:
    text = ("€" * (line // 3) + "\n") * (150_000 // line)
    captured = Captured()
    captured.add(Printed(1, "stdout", text.encode()), 0)
    shown: list[dict[str, Any]] = []
    while captured.waits(whole=whole):
        shown += _shown(captured, whole=whole)
    assert "".join(entry["text"] for entry in shown) == text
    assert line > ENTRY_BYTES or all(entry["text"].endswith("\n") for entry in shown)


def test_the_newest_is_kept_and_what_was_dropped_is_said_where_it_is_missing() -> None:
    captured = Captured()
    for n in range(100):
        captured.add(Printed(1, "stdout", (f"{n:03}" + "€" * 3332 + "\n").encode()), 0)
    entries, lost = captured.take(1, whole=True)
    kept = "".join(json.loads(data)["text"] for data, _ in entries)
    assert KEPT_BYTES - 20_000 < len(kept.encode()) <= KEPT_BYTES
    assert kept.endswith("099" + "€" * 3332 + "\n")
    assert lost == 100 * 10_000 - len(kept.encode())
    assert json.loads(entries[0][0])["dropped_bytes"] == lost
    assert all("dropped_bytes" not in json.loads(data) for data, _ in entries[1:])


def test_what_found_no_room_in_the_pipe_counts_as_dropped() -> None:
    captured = Captured()
    captured.add(Printed(1, "stdout", b"", 5), 0)
    assert captured.waits(whole=False)
    assert captured.take(1, whole=False) == ([], 5)


def test_many_short_pieces_are_bounded_by_their_number() -> None:
    captured = Captured()
    for n in range(2 * KEPT_PIECES):
        captured.add(Printed(1, ("stdout", "stderr")[n % 2], b"x"), 0)
    entries, lost = captured.take(1, whole=True)
    assert (len(entries), lost) == (KEPT_PIECES, KEPT_PIECES)
