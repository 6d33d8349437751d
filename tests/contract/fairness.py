"""Whether those who compete are given their shares: counted over claims, beside reference.py."""


class Fairness:
    """Counts what two that compete were given while both had something to take all the time.

    In shares (tasks by weight) they differ by at most one turn of each: one for where they stood when it began, one for
    whose turn it is.
    """

    def __init__(self) -> None:
        self._given: dict[tuple[str, str, str], tuple[int, int]] = {}

    def took(
        self,
        group: str,
        backlog_before: set[str],
        taken: dict[str, int],
        backlog_after: set[str],
        weights: dict[str, float],
    ) -> None:
        """A claim gave that many to each competitor; both backlogs: who had something to take before and after it."""
        both = sorted(backlog_before & backlog_after)
        for n, first in enumerate(both):
            for second in both[n + 1 :]:
                pair = group, first, second
                one, other = self._given.get(pair, (0, 0))
                one, other = one + taken.get(first, 0), other + taken.get(second, 0)
                self._given[pair] = one, other
                a, b = weights.get(first, 1.0), weights.get(second, 1.0)
                assert abs(one / a - other / b) <= 1 / a + 1 / b + 1e-6, f"unfair: {pair} got {one} and {other}"

    def only(self, backlogs: dict[str, set[str]]) -> None:
        """These have something to take now, by group; who has not begins anew."""
        self._given = {
            pair: given for pair, given in self._given.items() if set(pair[1:]) <= backlogs.get(pair[0], set())
        }

    def restart(self) -> None:
        """Weights have changed: what was given by the old ones says nothing."""
        self._given.clear()
