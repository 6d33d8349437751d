"""Many no-op tasks through one service: what memory its processes keep, and CPU per task with one and two children."""

from collections.abc import Iterator

from loadtest import client, marks
from loadtest.measures import Run, Sizes, Watch, until
from loadtest.services import NOOP, Running, Service
from loadtest.valkey import Durability, serving

_STEPS = 20
_WARM = _STEPS // 5
"""Until then caches, pools and the allocator's reserves have grown to what they need."""
_MIB = 1024**2


def flat_memory(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`flat`: MiB that the front and the supervisor grow by, each, over the last four fifths of many tasks."""
    with serving(durability) as valkey, service.running(valkey) as running:
        running.work()
        watch = Watch(running, valkey, sizes)
        step = sizes.many // _STEPS
        seen: list[dict[str, float]] = []
        for n in range(_STEPS):
            first = client.FIRST + n * step
            running.load("/tasks", method="POST", body=NOOP, count=step, seconds=sizes.many_s, first=first)
            _all_ran(running, (n + 1) * step, within_s=sizes.many_s)
            seen.append({"app": _app(running), "supervisor": _supervisor(running), "valkey": valkey.used_memory()})
        done = marks.read(running.marks)
        grown = {f"{name}_mib": (_level(seen[-_WARM:], name) - _level(seen[:_WARM], name)) / _MIB for name in seen[0]}
        held = {f"{name}_held_mib": seen[-1][name] / _MIB for name in seen[0]}
        counts = {"waiting": _STEPS * step, "done": len(done), "jobs": len({mark.n for mark in done})}
        yield watch.run("flat", service, durability, grown | held | counts | watch.costs(len(done)))


def cpu_by_children(service: Service, durability: Durability, sizes: Sizes) -> Iterator[Run]:
    """`children`: CPU of a no-op task in supervisor and children, with two children as a multiple of that with one."""
    costs: dict[int, float] = {}
    for processes in (1, 2):
        with serving(durability) as valkey, service.running(valkey, processes=processes) as running:
            running.load("/tasks", method="POST", body=NOOP, count=sizes.fill, seconds=sizes.many_s)
            watch = Watch(running, valkey, sizes)
            running.work()
            _all_ran(running, sizes.fill, within_s=sizes.many_s)
            costs[processes] = watch.costs(sizes.fill)["workers_cpu_us"]
            if processes == 2:
                figures = {"one_us": costs[1], "two_us": costs[2], "ratio": costs[2] / costs[1]}
                yield watch.run("children", service, durability, figures)


def _all_ran(running: Running, count: int, *, within_s: float) -> None:
    until(
        lambda: marks.count(running.marks) >= count, f"{running.name}: jobs were lost", within_s=within_s, every_s=0.05
    )


def _app(running: Running) -> float:
    return running.app.rss_bytes()


def _supervisor(running: Running) -> float:
    return sum(group.first_rss_bytes() for group in running.workers)


def _level(samples: list[dict[str, float]], name: str) -> float:
    """The most of some samples: what is freed and taken again is no growth."""
    return max(sample[name] for sample in samples)
