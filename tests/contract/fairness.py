"""Whether those who compete are given their shares: counted over claims, beside reference.py."""


class Fairness:
    """Counts what two that compete were given while both had something to take all the time.

    In shares (tasks by weight) they differ by at most one turn of each: one for where they stood when it began, one for
    whose turn it is. Where they stood may be due to other weights, until each has had a turn by those of now.
    """

    def __init__(self) -> None:
        self._given: dict[tuple[str, str, str], tuple[int, int]] = {}
        self._settled: set[tuple[str, str, str]] = set()
        """Pairs of which each has had a turn by the weights of now."""
        self._least: dict[str, float] = {}
        """The least that each has weighed before these."""

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
                turns = before = 1 / a + 1 / b
                if pair not in self._settled:
                    before = 1 / min(a, self._least.get(first, a)) + 1 / min(b, self._least.get(second, b))
                assert abs(one / a - other / b) <= before + 1e-6, f"unfair: {pair} got {one} and {other}"
                if one and other and before > turns:
                    self._settled.add(pair)
                    self._given[pair] = 0, 0

    def only(self, backlogs: dict[str, set[str]]) -> None:
        """These have something to take now, by group; who has not begins anew."""
        self._given = {
            pair: given for pair, given in self._given.items() if set(pair[1:]) <= backlogs.get(pair[0], set())
        }

    def restart(self, before: dict[str, float]) -> None:
        """Weights have changed: what was given by those says nothing but how far each may be ahead."""
        self._given.clear()
        self._settled.clear()
        self._least = {who: min(weight, self._least.get(who, weight)) for who, weight in before.items()}
