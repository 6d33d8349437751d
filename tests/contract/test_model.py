"""The store as a whole, driven by Hypothesis: supervisors that crash, freeze and wake, lost replies, jumping clocks.

After every step what is stored must agree with itself (invariants.py) and with the reference (reference.py). A failure
prints the shortest series of steps that shows it, as code that can be run again.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.contract.life import Life
from tests.contract.life_common import POLICIES, WORKERS
from tests.contract.life_supervisors import CONCURRENCY

DELAY_MS = st.sampled_from([0, 0, 50, 3000])
OUTCOME = st.sampled_from(["retry", "succeeded", "failed", "canceled"])
PICK = st.integers(0, 12)
"""Counts back from the newest: what was made long ago is picked now and then."""
WHOSE = st.sampled_from(["holder", "holder", "past", "any"])
"""Whether by one who may, by one whose task is another's by now, or any."""
REPEAT = st.sampled_from([False, False, True])
"""Whether the reply was lost, so that the caller sends the same again."""

POLICY = st.sampled_from(["none", "none", "slow", *POLICIES])
UNIQUE = st.sampled_from(["", "", "u", "v"])
CONFLICT = st.sampled_from(["return", "replace", "refuse"])


def _step(method: Any, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.fixed_dictionaries(arguments).map(lambda chosen: (method.__name__, chosen))


_worker = st.sampled_from(WORKERS)
_slots = {
    "sync": st.sampled_from([2, 1, 4, 0]),
    "fresh": st.sampled_from([1, 0, 4]),
    "async": st.sampled_from([1, 3, 0]),
}
_submit = _step(
    Life.submit,
    name=st.sampled_from(["echo", "echo", "other", "get", "once", "strange"]),
    tenants=st.sampled_from(["a", "ab", "b"]),
    queue=st.sampled_from(["default", "default", "second"]),
    priority=st.sampled_from([5, 5, 9]),
    delay_ms=DELAY_MS,
    deadline_ms=st.sampled_from([0, 0, 40, 5000]),
    max_attempts=st.sampled_from([2, 1, 3]),
    key=st.sampled_from(["", "", "k"]),
    body=st.sampled_from(["one", "one", "two"]),
    policy=POLICY,
    others=st.sampled_from(["", "", "behind", "closed"]),
    unique_key=UNIQUE,
    on_conflict=CONFLICT,
    concurrency_key=st.sampled_from(["", "", "c", "d"]),
    concurrency=st.sampled_from([1, 2]),
    count=st.sampled_from([2, 1, 4, 12]),
    repeat=REPEAT,
)
_work = _step(Life.work, worker=_worker, **_slots, ends=st.lists(st.tuples(OUTCOME, DELAY_MS), min_size=1, max_size=4))
_claim = _step(Life.claim, worker=_worker, **_slots, alone=st.sampled_from([1, 0]), fresh_takes=st.sampled_from([1, 2]))
_writes = st.one_of(
    _step(
        Life.finish,
        pick=PICK,
        whose=WHOSE,
        outcome=OUTCOME,
        delay_ms=DELAY_MS,
        submits=st.integers(0, 2),
        unique=UNIQUE,
        on_conflict=CONFLICT,
        repeat=REPEAT,
    ),
    _step(
        Life.hand_back,
        pick=PICK,
        whose=WHOSE,
        delay_ms=DELAY_MS,
        ran=st.booleans(),
        reason=st.sampled_from(["drain", "neighbour", "suspect", "unknown"]),
        repeat=REPEAT,
    ),
    _step(Life.report, pick=PICK, whose=WHOSE, number=st.integers(1, 3), repeat=REPEAT),
)
_clients = st.one_of(
    _step(Life.cancel, pick=PICK, whose=WHOSE, repeat=REPEAT),
    _step(
        Life.redrive,
        pick=PICK,
        whose=WHOSE,
        request=st.sampled_from(["r1", "r2", "r3"]),
        policy=POLICY,
        repeat=REPEAT,
    ),
    _step(
        Life.redrive_letters,
        tenant=st.sampled_from(["", "a"]),
        request=st.sampled_from(["r1", "r2", "r3"]),
        policy=POLICY,
        before_ms=st.sampled_from([1, 0, -3000]),
        first_ms=st.sampled_from([0, -300, 500]),
        rate_per_s=st.sampled_from([0, 4, 0.5]),
        repeat=REPEAT,
    ),
    _step(Life.purge, tenant=st.sampled_from(["", "a", "b"]), before_ms=st.sampled_from([1, -3000]), repeat=REPEAT),
    _step(
        Life.letters,
        tenant=st.sampled_from(["a", "b"]),
        limit=st.sampled_from([1, 3, 100]),
        oldest_first=st.booleans(),
        spilled=st.booleans(),
    ),
    _step(Life.delete, pick=PICK, repeat=REPEAT),
    _step(Life.pages, tenant=st.sampled_from(["a", "b"]), limit=st.sampled_from([1, 2, 5, 100])),
)
_supervisors = st.one_of(
    _step(Life.beat, worker=_worker, forgotten=st.integers(0, 2), foreign=st.booleans()),
    _step(Life.reap, worker=_worker, pick=st.sampled_from([0, 0, 1]), repeat=REPEAT),
    _step(Life.fail_unserved, worker=_worker, name=st.sampled_from(["strange", "echo"])),
    _step(Life.goodbye, worker=_worker),
)
_allow = _step(
    Life.allow,
    policy=st.sampled_from(["few at a time", "weights", "none"]),
    concurrency=st.sampled_from([*CONCURRENCY][::-1]),
)
_time = _step(
    Life.time_passes,
    by_ms=st.sampled_from([100, 1, 10, 4000, 50_000, 600_000, -1, -5000, -600_000]),
    due=st.sampled_from([True, False]),
    trim=st.booleans(),
    repeat=REPEAT,
)
STEPS = st.sampled_from([_work, _submit, _claim, _writes, _writes, _clients, _supervisors, _allow, _time]).flatmap(
    lambda kind: kind
)
"""Two draws, so that what makes up most of a life is most of it."""


class Machine(RuleBasedStateMachine):
    """One rule, not one for each step: Hypothesis would leave out half of the rules in half of the lives."""

    redis_url: str

    def __init__(self) -> None:
        super().__init__()
        self.life = Life(self.redis_url)

    @rule(step=STEPS)
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self.life, name)(**arguments)

    @invariant()
    def all_agrees(self) -> None:
        self.life.check()

    def teardown(self) -> None:
        self.life.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("lives", "steps"), [(8, 40), pytest.param(40, 50, marks=pytest.mark.full)])
def test_whatever_happens_in_whatever_order_the_store_keeps_its_promises(
    redis_url: str, lives: int, steps: int
) -> None:
    class Here(Machine):
        pass

    Here.redis_url = redis_url
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=lives,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
