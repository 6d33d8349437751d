"""What this machine gives: kernel features, limits, cgroup, disk. `doctor` judges the readings."""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent: int, number: signal.Signals) -> None:
    """Get that signal when the thread that started this process dies; exit at once if `parent` is gone already."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every process below this one that loses its own, so that none of them gets out of sight."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def missing_features() -> list[str]:
    """What Taskgate needs of the kernel and does not get (an old kernel, or a sandbox that forbids it)."""
    return [name for name, works in (("pidfd", _has_pidfd), ("memfd", _has_memfd)) if not works()]


def _has_pidfd() -> bool:
    """pidfd_open (Linux 5.3): the death of a child as a readable descriptor."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _has_memfd() -> bool:
    """memfd_create: shared pages and large payloads between supervisor and child."""
    try:
        os.close(os.memfd_create("taskgate-doctor"))
    except (AttributeError, OSError):
        return False
    return True


def has_run_queue_times(root: Path = Path("/")) -> bool:
    """Whether /proc says how long threads waited for a CPU; without it no task is called `starved`."""
    return (root / "proc/self/schedstat").exists()


def is_linux() -> bool:
    return sys.platform == "linux"


def open_files_limit() -> int:
    """Descriptors that a process may have open (soft limit)."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_open_files_limit() -> None:
    """To what this process may have at most: each open stream is a descriptor."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process may use: the least of the machine's and its cgroups'; None when nothing says."""
    limits = [*_cgroup_values(root, v2="memory.max", v1="memory.limit_in_bytes"), *_physical_memory(root)]
    return min((int(text) for text in limits if text != "max"), default=None)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs that its cgroups grant this process; None without a quota."""
    quotas = []
    for text in _cgroup_values(root, v2="cpu.max", v1=""):
        quota, _, period = text.partition(" ")
        if quota != "max":
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def free_bytes(folder: Path) -> int:
    """Free space where `folder` is or would be made."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    found = os.statvfs(there)
    return found.f_bavail * found.f_frsize


def _physical_memory(root: Path) -> list[str]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return []
    return [str(int(line.split()[1]) * 1024) for line in lines if line.startswith("MemTotal:")]


def _cgroup_values(root: Path, *, v2: str, v1: str) -> list[str]:
    """The file's content in every group above this process, both hierarchies; a container may show only the root."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            found += _upwards(root / "sys/fs/cgroup", path, v2)
        elif v1 and controllers == v1.partition(".")[0]:
            found += _upwards(root / "sys/fs/cgroup" / controllers, path, v1)
    return found


def _upwards(mount: Path, path: str, name: str) -> list[str]:
    inner = Path(path.lstrip("/"))
    texts = []
    for folder in (mount / inner, *(mount / parent for parent in inner.parents)):
        try:
            texts.append((folder / name).read_text().strip())
        except OSError:
            continue
    return texts
