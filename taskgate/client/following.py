"""Following tasks to their ends over however many connections, as steps for either driver."""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, cast

from taskgate.client.answers import check, json_object
from taskgate.client.calls import LONG_POLL_S, Calls, pace_s, path_of
from taskgate.client.errors import NotFound, ServiceError, Unreachable
from taskgate.client.models import FINAL, Event, Task
from taskgate.client.steps import Answer, Message, Open, Params, Pause, Read, Steps, Tell

MAX_TASKS = 100
"""As many as one stream may follow."""

_SILENCE_S = 45.0
"""Three pings of the server: a stream that is silent for longer is dead."""
_IMPATIENT_S = 20.0
"""One ping and some: where polling would do as well, a stream that something in between holds up is left earlier."""
_STEADY_S = 10.0
"""A connection that held for so long was a good one, events or not."""
_STREAM_AGAIN_S = (2.0, 60.0)
"""After a stream that failed: when to try the next, at first and at most."""


class Following:
    """Where in the events of its tasks a client is. One task is followed by its own stream, several by one for all."""

    def __init__(self, calls: Calls, task_ids: Sequence[str], last_event_id: str = "") -> None:
        self._calls = calls
        self._all = list(dict.fromkeys(task_ids))
        if not 1 <= len(self._all) <= MAX_TASKS:
            raise ValueError(f"one stream follows 1 to {MAX_TASKS} tasks, not {len(self._all)}")
        for task_id in self._all:
            path_of(task_id)  # of several, the address does not say which one is none
        self._only = self._all[0] if len(self._all) == 1 else None
        self._left = list(self._all)
        self._last_id = last_event_id
        self._retry_s = 1.0
        self._doubles = Doubles()
        self._tags: dict[str, str | None] = {}
        """What the last poll of each said that it is: also what has no version, such as that it is lost."""

    def events(self) -> Steps[None]:
        """Tells every Event to the ends of all tasks: none twice that has an id, none left out."""
        patience = self._calls.patience()

        def tell(event: Event) -> Iterable[Tell]:
            patience.reset()
            return [Tell(event)]

        while self._left:
            connected = time.monotonic()
            try:
                if (yield from self._connection(tell, silence_s=_SILENCE_S)):
                    return
                delay_s = self._retry_s * random.uniform(0.5, 1.0)
            except ServiceError as error:
                if time.monotonic() - connected > _STEADY_S:
                    patience.reset()
                delay_s = patience.delay_s(error)
                self._calls.on_wait(error, delay_s)
            if self._left:
                yield Pause(delay_s)

    def states(self) -> Steps[None]:
        """Tells each Task as it is now, and whenever it has changed, to the ends of all.

        By a stream, and by polls while there is none to be had.
        """
        yield from self._states(lambda task: [Tell(task)])

    def end(self) -> Steps[Task]:
        """The one task, as it ended."""
        tasks = yield from self._states(lambda task: [])
        return tasks[cast("str", self._only)]

    def _states(self, tell: Callable[[Task], Iterable[Tell]]) -> Steps[dict[str, Task]]:
        tasks = {task_id: cast("Task", {"id": task_id}) for task_id in self._left}
        first_s, most_s = _STREAM_AGAIN_S
        again_s = first_s

        def hear(event: Event) -> Iterable[Tell]:
            nonlocal again_s
            again_s = first_s
            if event.task_id not in tasks:
                return ()
            before = tasks[event.task_id]
            tasks[event.task_id] = after(before, event)
            return () if tasks[event.task_id] is before else tell(tasks[event.task_id])

        while self._left:
            try:
                yield from self._connection(hear, silence_s=_IMPATIENT_S, news_only=True)
            except ServiceError as error:
                if self._only and isinstance(error, NotFound):
                    raise
                # Otherwise the polls tell whether it is more than the stream.
            yield from self._polled(tasks, tell, for_s=again_s * random.uniform(0.8, 1.0))
            again_s = min(most_s, again_s * 2)
        return tasks

    def _polled(self, tasks: dict[str, Task], tell: Callable[[Task], Iterable[Tell]], *, for_s: float) -> Steps[None]:
        until = time.monotonic() + for_s
        while self._left:
            asked = time.monotonic()
            for task_id in list(self._left):
                before = tasks[task_id]
                tag = _tag(before.get("version"), self._tags.get(task_id))
                hold_s = int(min(for_s, LONG_POLL_S)) if self._only else 0
                task, self._tags[task_id] = yield from self._calls.poll(task_id, tag=tag, hold_s=hold_s)
                if task is None or all(name in before and before[name] == task.get(name) for name in _MOVED):
                    continue
                tasks[task_id] = task
                if task.get("status") in FINAL:
                    self._left.remove(task_id)
                yield from tell(task)
            if self._left:
                next_at = asked + min(pace_s(tasks[task_id]) for task_id in self._left)
                yield Pause(max(0.0, min(next_at, until) - time.monotonic()))
            if time.monotonic() >= until:
                return

    def _connection(
        self, tell: Callable[[Event], Iterable[Tell]], *, silence_s: float, news_only: bool = False
    ) -> Steps[bool]:
        """Whether all ends were seen before. `news_only`: without the own events that were before the snapshot."""
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        params: Params = [] if self._only else [("task", task_id) for task_id in self._all]
        params += [("from", "now")] if news_only else []
        path = path_of(self._only, "events") if self._only else "/events"
        answer: Answer = yield Open(path, params, headers, silence_s)
        if answer.status == 204:
            return True
        check(answer)
        if not self._only:
            self._doubles.expect()
        while True:
            message: Message | None = yield Read()
            if message is None:
                return False
            event = self._event(message)
            if event is not None:
                yield from tell(event)

    def _event(self, message: Message) -> Event | None:
        if message.retry_ms is not None:
            self._retry_s = message.retry_ms / 1000
        if not message.data:
            return None
        data = json_object(message.data)
        if data is None:
            raise Unreachable("its event stream is not Taskgate's")
        task_id = self._only or data.get("task_id", "")
        self._last_id = message.id or self._last_id
        event = Event(self._last_id, message.event, data, task_id)
        if event.name == "gap" and "seq" not in data:
            self._doubles.expect()  # what is kept may be told from its beginning
            return event
        if task_id not in self._left or self._doubles.has(event):
            return None
        if event.name in ("end", "gone"):
            self._left.remove(task_id)
        return event


_MOVED: Sequence[Literal["version", "health", "stage"]] = ("version", "health", "stage")
"""A polled task is told when one of these is another than before."""


def _tag(version: int | None, polled: str | None) -> str | None:
    """Of the version that is known, by a stream perhaps; the whole one where a poll has told that version."""
    if version is None or (polled or "").startswith((f'W/"{version}"', f'W/"{version}-')):
        return polled
    return f'W/"{version}"'


class Doubles:
    """Which events were there before: a stream of several tasks, resumed, repeats up to a millisecond; one that cannot
    be resumed begins anew.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """Task → seq of its last event, and how many of that seq: what one write tells may share one."""
        self._skip: dict[str, tuple[int, int]] = {}

    def expect(self) -> None:
        """What was seen so far may come again."""
        self._skip = dict(self._seen)

    def has(self, event: Event) -> bool:
        seq = event.data.get("seq")
        if not isinstance(seq, int) or event.name in _WHOLE:
            return False
        skip_seq, skip = self._skip.get(event.task_id, (-1, 0))
        if seq == skip_seq and skip:
            self._skip[event.task_id] = seq, skip - 1
            return True
        if seq < skip_seq:
            return True
        last, count = self._seen.get(event.task_id, (-1, 0))
        self._seen[event.task_id] = seq, count + 1 if seq == last else 1
        return False


_WHOLE = frozenset({"snapshot", "end"})
"""No events of their own, but what is now."""


_OF_A_STATUS = dict.fromkeys(("stage", "progress", "estimate", "health", "queue_position"))
"""What was true of the last status says nothing of the next."""


def after(task: Task, event: Event) -> Task:
    """The task as an event leaves it; `task` itself when that changes nothing, or is older than what is known."""
    data = event.content()
    seq = event.data.get("seq")
    whole = event.name in _WHOLE
    known = task.get("version", -1)
    if isinstance(seq, int) and (seq < known if whole else seq <= known):
        return task
    if whole:
        changed = data
    elif event.name == "status" and data.get("status") in FINAL:
        return task  # the `end` is about to tell the whole of it, or else a poll
    elif event.name == "status":
        changed = data if data.get("status") == task.get("status") else {**_OF_A_STATUS, **data}
    elif event.name == "progress":
        changed = {"progress": data}
    else:
        return task
    merged = {**task, **changed} if whole or seq is None else {**task, **changed, "version": seq}
    return task if merged == task else cast("Task", merged)
