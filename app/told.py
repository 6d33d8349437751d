"""What a client is told of one task, by what it has and what there is: pure, so that equal clients share it."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from app.snapshots import Snapshot
from taskgate.contract.models import EventPage

NOT_LOOKED = ""
GAP = b'{"detail":"events may be missing before this point"}'
_IN_THE_SNAPSHOT = ("status", "progress")
"""Events of which the snapshot shows the outcome; what the handler sent and printed no snapshot holds."""


class Place(NamedTuple):
    """How far a client has got with one task."""

    cursor: str = "0-0"
    """The last event that it has."""
    floor: int = -1
    """Version of the snapshot with which it began: what that shows is not told again."""
    progress: bytes = b""
    health: str | None = NOT_LOOKED
    stage: str | None = None


class Block(NamedTuple):
    """One server-sent event. `event_id`: where to resume after it; None: it lies outside of resuming."""

    name: str
    data: bytes
    event_id: str | None = None


class From(StrEnum):
    """What a client that has seen nothing is told of the past, behind the snapshot."""

    OWN = ""
    """The kept events that the snapshot does not show."""
    START = "start"
    """Every kept event."""
    NOW = "now"
    """Nothing."""


class Told(NamedTuple):
    blocks: list[Block]
    place: Place
    ended: bool = False
    again: bool = False
    """There is more to read, or the task moved on between the two reads."""


def begin(snapshot: Snapshot, *, every: bool = False) -> Told:
    """The state now; its events from the oldest on are to follow. `every`: also those of which it is the outcome."""
    record = snapshot.record
    place = Place("0-0", 0 if every else record.version, record.progress, record.seen_health(), record.seen_stage())
    return Told([Block("snapshot", with_seq(snapshot))], place)


def news(place: Place, snapshot: Snapshot, page: EventPage) -> Told:
    """What follows `place`: `snapshot` was read first, then `page`, the events after `place.cursor`."""
    known = [event for event in page.events if event.seq <= snapshot.record.version]
    whole = page.whole and len(known) == len(page.events)
    blocks = [
        Block(event.name, _event_data(event.seq, event.data), event.id)
        for event in known
        if event.name not in _IN_THE_SNAPSHOT or event.seq > place.floor
    ]
    cursor = known[-1].id if known else place.cursor
    if not whole:
        stage = snapshot.record.seen_stage()
        if stage is not None or not any(event.name == "status" for event in known):
            stage = place.stage  # is told behind the last page
        return Told(blocks, place._replace(cursor=cursor, stage=stage), again=True)
    if snapshot.has_ended():
        blocks.append(Block("end", with_seq(snapshot), None if cursor == "0-0" else cursor))
        return Told(blocks, place._replace(cursor=cursor), ended=True)
    blocks += _between(place, snapshot, told={event.name for event in known})
    record = snapshot.record
    return Told(blocks, Place(cursor, -1, record.progress, record.seen_health(), record.seen_stage()))


def _between(place: Place, snapshot: Snapshot, *, told: set[str]) -> list[Block]:
    """What is not kept as an event: live progress, a change of health or stage."""
    record, blocks = snapshot.record, []
    if told.isdisjoint(_IN_THE_SNAPSHOT) and record.progress and record.progress != place.progress:
        blocks.append(Block("progress", _event_data(record.version, record.progress)))
    stage = record.seen_stage()
    looked, moved = place.health != NOT_LOOKED, place.stage != stage
    # A status event says neither stage nor scheduled_at; that there is no stage any more it does say.
    unsaid = moved and (stage is not None if "status" in told else looked)
    if unsaid or (looked and place.health != record.seen_health()):
        blocks.append(Block("snapshot", with_seq(snapshot)))
    return blocks


def own_end(blocks: list[Block]) -> list[Block]:
    """The last event without its id, and `end` with it: a client that misses the end asks for it again."""
    *others, end = blocks
    return [*(block._replace(event_id=None) if block.event_id == end.event_id else block for block in others), end]


def joined(blocks: Iterable[Block]) -> bytes:
    return b"".join(map(_encoded, blocks))


def _encoded(block: Block) -> bytes:
    head = f"id: {block.event_id}\r\nevent: {block.name}" if block.event_id else f"event: {block.name}"
    return b"%s\r\ndata: %s\r\n\r\n" % (head.encode(), block.data.translate(None, b"\r\n"))


def of_task(block: Block, task_id: str) -> Block:
    """The same, saying whose it is."""
    return block._replace(data=b'{"task_id":"%s",%s' % (task_id.encode(), block.data[1:]))


def with_seq(snapshot: Snapshot) -> bytes:
    return b'{"seq":%d,%s' % (snapshot.record.version, snapshot.body[1:])


def _event_data(seq: int, data: bytes) -> bytes:
    inner = data.strip()[1:-1].strip()
    return b'{"seq":%d%s%s}' % (seq, b"," if inner else b"", inner)
