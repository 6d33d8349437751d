"""Readings of the machine, from trees as the kernel shows them."""

from pathlib import Path

import pytest

from taskgate import platform

MIB = 1024**2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", "MemTotal:        2048 kB\nMemFree:  1 kB\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_this_kernel_has_what_is_needed() -> None:
    assert platform.is_linux()
    assert platform.missing_features() == []
    assert platform.open_files_limit() > 0
    assert (platform.memory_bytes() or 0) > 0


def test_a_kernel_without_a_feature_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object) -> int:
        raise PermissionError

    monkeypatch.setattr("os.pidfd_open", forbidden)
    assert platform.missing_features() == ["pidfd"]
    monkeypatch.delattr("os.memfd_create")
    assert platform.missing_features() == ["pidfd", "memfd"]


def test_without_a_cgroup_memory_is_the_machines(root: Path) -> None:
    assert platform.memory_bytes(root) == 2 * MIB
    assert platform.cpu_quota(root) is None


def test_the_least_limit_of_all_groups_above_counts(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/a.slice/b.service\n")
    write(root / "sys/fs/cgroup/a.slice/memory.max", f"{MIB}\n")
    write(root / "sys/fs/cgroup/a.slice/b.service/memory.max", "max\n")
    write(root / "sys/fs/cgroup/a.slice/cpu.max", "150000 100000\n")
    write(root / "sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n")
    assert platform.memory_bytes(root) == MIB
    assert platform.cpu_quota(root) == 1.5


def test_a_container_that_sees_only_its_own_root(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/docker/0123\n")
    write(root / "sys/fs/cgroup/memory.max", f"{MIB}\n")
    assert platform.memory_bytes(root) == MIB


def test_the_older_hierarchy_is_read_too(root: Path) -> None:
    write(root / "proc/self/cgroup", "4:memory:/x\n1:name=systemd:/\n0::/\n")
    write(root / "sys/fs/cgroup/memory/x/memory.limit_in_bytes", f"{MIB}\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert platform.memory_bytes(root) == MIB


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    assert platform.memory_bytes(tmp_path) is None
    assert not platform.has_run_queue_times(tmp_path)


def test_free_space_of_a_folder_that_is_not_made_yet(tmp_path: Path) -> None:
    assert platform.free_bytes(tmp_path / "not/yet") > 0
