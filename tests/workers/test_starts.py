"""The start of a child that fails, at whatever step, leaves nothing."""

import os
import resource

from tests.workers.conftest import JOBS, Watched
from workers.children import ChildSpec


def descriptors() -> set[int]:
    with os.scandir("/proc/self/fd") as found:
        return {int(one.name) for one in found}


async def test_without_descriptors_each_step_of_a_start_gives_back_what_it_took() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before, failures, watched = descriptors(), 0, None
    for limit in range(3, max(before) + 64):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            watched = Watched(ChildSpec(kind="sync", handlers=(JOBS,)))
            break
        except OSError:
            failures += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert descriptors() == before, f"after failure {failures}, with {limit}"
    assert watched is not None
    assert failures > 12, "each descriptor that it takes can be one too many"
    await watched.bury()
    assert descriptors() == before
