"""How deep to draft: the depth whose cycles commit the most tokens per second, 0 included.

Both halves are measured while decoding: what a cycle of each depth costs with so many rows, and how often
each slot is accepted. Depths that were not tried lie between those that were. What looks worse is tried
again, ever more rarely and within a budget of time, so that a drafter gets another chance when the prompts
change, and plain decoding when the machine does. No clock here: the caller times its cycles.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from eagleray.speculation.acceptance import Cycle
from eagleray.speculation.costs import expected_tokens

MARGIN = 1.03
"""A depth replaces the current one only if it promises this many times its rate."""

LEAST_GAIN = 1.1
"""Drafting that does not promise this many times the rate of plain decoding is left alone: times are
measured with an error, a drafter has also to read prompts, and answers that end soon use less of a draft than
is expected."""

TRIAL_SHARE = 0.01
"""Most of the time that may be lost by trying other depths than the chosen one, once each was tried."""

_COST_SAMPLES = 12
_FIRST_SAMPLES = 2
_FORGET = 0.96
"""What a cycle counts less than the one after it: some 25 of them are remembered."""
_FIRST_PROBE = 16
"""Cycles until another depth is tried; doubled while that changes nothing."""
_RAREST_PROBE, _RAREST_CHECK = 256, 64
"""At most so many cycles of plain decoding until drafting is tried, and of drafting until plain decoding is
timed again: a machine that has grown slower must not make drafting look better."""


@dataclass(frozen=True, kw_only=True)
class DepthChoice:
    """What was chosen for a number of rows, and why."""

    rows: int
    depth: int
    expected_tokens: float
    """Of one row in a cycle of this depth."""
    cycle_s: float
    plain_s: float
    """A cycle without drafts."""

    @property
    def speedup(self) -> float:
        """Promised over plain decoding."""
        return self.expected_tokens * self.plain_s / self.cycle_s

    @property
    def reason(self) -> str:
        """One line for people."""
        if self.depth == 0:
            return f"{self.rows} rows: plain decoding, as no depth promises more tokens per second"
        return (
            f"{self.rows} rows: depth {self.depth} promises {self.expected_tokens:.2f} tokens a row in "
            f"{self.cycle_s * 1e3:.1f} ms, against 1 in {self.plain_s * 1e3:.1f} ms: {self.speedup:.2f} times"
        )


class DepthChooser:
    """Chooses the depth of every cycle of one drafter.

    Args:
        deepest: The most that may be drafted, at least 1.
    """

    def __init__(self, deepest: int):
        self.deepest = deepest
        self._acceptance = _Acceptance(deepest)
        self._by_rows: dict[int, _Costs] = {}
        self._owed_s = 0.0
        """Lost by trials, and not yet made up for by the time since."""
        # Depths that are timed; others are interpolated.
        self._timed = sorted({0, 1, deepest} | ({deepest // 2} if deepest > 3 else set()))

    def next_depth(self, rows: int) -> int:
        """Depth of the next cycle of so many rows."""
        costs = self._costs(rows)
        if costs.untimed:
            return costs.untimed.pop()
        self._revise(costs)
        costs.since_probe += 1
        if not costs.promising and (costs.since_probe < costs.probe_after or self._owed_s > 0.0):
            return costs.depth
        return self._probe(costs)

    def record(
        self, rows: int, depth: int, cycle_s: float, cycles: Iterable[Cycle], *, told_s: float = 0.0
    ) -> None:
        """Take in a cycle: the depth that `next_depth` gave, its seconds, and the counts of its rows.

        A drafter that had nothing to propose has run a plain cycle, and is timed as such.

        Args:
            told_s: Seconds before it in which the drafter was told what it had missed.
        """
        costs = self._costs(rows)
        cycles = list(cycles)
        costs.time(max(cycle.drafted for cycle in cycles), cycle_s)
        delivered = sum(cycle.delivered for cycle in cycles)
        if depth != costs.depth and not costs.untimed:
            self._owed_s += told_s + cycle_s - delivered / (len(cycles) * self._rate(costs, costs.depth))
        self._owed_s = max(0.0, self._owed_s - TRIAL_SHARE * cycle_s)
        if depth == 0:
            return
        drafted = any(cycle.drafted for cycle in cycles)
        costs.drafting = costs.drafting * _FORGET + (1.0 - _FORGET) * drafted
        self._acceptance.record(cycles)
        # A try that succeeded is worth another one at once.
        costs.promising = costs.depth == 0 and delivered / cycle_s > len(cycles) / costs.cycle_s(0)

    def choice(self, rows: int) -> DepthChoice | None:
        """The current depth for so many rows; None until every depth that is timed has been tried."""
        costs = self._costs(rows)
        if costs.untimed or not costs.samples:
            return None
        return DepthChoice(
            rows=rows,
            depth=costs.depth,
            expected_tokens=self._tokens(costs.depth),
            cycle_s=costs.cycle_s(costs.depth),
            plain_s=costs.cycle_s(0),
        )

    def _costs(self, rows: int) -> "_Costs":
        """Of a number of rows, rounded down to one of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
        size = 1 << (rows.bit_length() - 1)
        size += size // 2 if rows >= size + size // 2 else 0
        if size not in self._by_rows:
            larger = [rows for rows, costs in self._by_rows.items() if rows > size and not costs.untimed]
            # A batch that drains goes on as it was: what more rows cost makes drafting look too dear, never
            # too cheap.
            known = self._by_rows[min(larger)] if larger else None
            self._by_rows[size] = known.copy() if known else _Costs(untimed=self._timed * _FIRST_SAMPLES)
        return self._by_rows[size]

    def _tokens(self, depth: int) -> float:
        return expected_tokens(self._acceptance.rates(depth))

    def _rate(self, costs: "_Costs", depth: int) -> float:
        return self._tokens(depth) / costs.cycle_s(depth)

    def _revise(self, costs: "_Costs") -> None:
        rates = [self._rate(costs, depth) for depth in range(self.deepest + 1)]
        best = rates.index(max(rates))
        if rates[best] < LEAST_GAIN * rates[0]:
            best = 0
        if best != costs.depth and (best == 0 or rates[best] > MARGIN * rates[costs.depth]):
            costs.depth = best
            costs.since_probe, costs.probe_after, costs.promising = 0, _FIRST_PROBE, False

    def _probe(self, costs: "_Costs") -> int:
        """Try the best of the depths on the other side of drafting or not; next time, later."""
        later = _FIRST_PROBE if costs.promising else 2 * costs.probe_after
        costs.since_probe, costs.promising = 0, False
        costs.probe_after = min(later, _RAREST_CHECK if costs.depth else _RAREST_PROBE)
        if costs.depth > 0 and costs.probed_deeper:
            costs.probed_deeper = False
            return 0
        costs.probed_deeper = True
        if costs.depth > 0:
            return min(costs.depth + 1, self.deepest)
        return max(range(1, self.deepest + 1), key=lambda depth: self._rate(costs, depth))


@dataclass
class _Costs:
    """Seconds of cycles with one number of rows, and what was made of them."""

    untimed: list[int]
    """Depths to try before anything is chosen, the next one last."""
    samples: dict[int, deque[float]] = field(default_factory=dict)
    drafting: float = 1.0
    """Share of the cycles that were to draft in which any row had a draft."""
    depth: int = 0
    since_probe: int = 0
    probe_after: int = _FIRST_PROBE
    probed_deeper: bool = False
    promising: bool = False
    """Whether drafting, tried while it was not chosen, paid in its last cycle."""

    def copy(self) -> "_Costs":
        """A start for another number of rows: one measurement for each depth."""
        samples = {depth: deque([_usual(times)], _COST_SAMPLES) for depth, times in self.samples.items()}
        return _Costs(untimed=[], samples=samples, drafting=self.drafting, depth=self.depth)

    def time(self, depth: int, cycle_s: float) -> None:
        """Take in a cycle that drafted so deep."""
        self.samples.setdefault(depth, deque(maxlen=_COST_SAMPLES)).append(cycle_s)

    def cycle_s(self, depth: int) -> float:
        """Expected of a cycle that may draft so deep, and sometimes has nothing to propose."""
        known = {known: _usual(samples) for known, samples in sorted(self.samples.items())}
        plain_s = known.get(0, next(iter(known.values())))
        return self.drafting * _between(known, depth) + (1.0 - self.drafting) * plain_s


def _usual(samples: deque[float]) -> float:
    """Mean of the shorter half: what else ran on the machine makes times longer, never shorter."""
    kept = sorted(samples)[: (len(samples) + 1) // 2]
    return sum(kept) / len(kept)


def _between(known: dict[int, float], depth: int) -> float:
    """What was measured at this depth, or between its neighbours; beyond all of them, at the nearest."""
    if depth in known:
        return known[depth]
    for (below, below_s), (above, above_s) in pairwise(known.items()):
        if below < depth < above:
            return below_s + (above_s - below_s) * (depth - below) / (above - below)
    return known[min(known, key=lambda other: abs(other - depth))]


class _Acceptance:
    """How often each slot was accepted lately, of the cycles in which all slots before it were."""

    def __init__(self, deepest: int):
        # As if every slot had been judged once already, and had passed more often than not.
        self._reached = [1.0] * deepest
        self._passed = [0.7] * deepest

    def record(self, cycles: Sequence[Cycle]) -> None:
        """Count the rows of a cycle that was to draft. A row that had nothing to propose failed at once."""
        judged = [
            cycle.accepted + (cycle.delivered > cycle.accepted and cycle.accepted < max(cycle.drafted, 1))
            for cycle in cycles
        ]
        for slot in range(min(max(judged), len(self._reached))):
            reached = sum(slot < count for count in judged)
            passed = sum(slot < cycle.accepted for cycle in cycles)
            self._reached[slot] = self._reached[slot] * _FORGET + reached
            self._passed[slot] = self._passed[slot] * _FORGET + passed

    def rates(self, depth: int) -> list[float]:
        """Acceptance of the first `depth` slots."""
        return [
            passed / reached
            for passed, reached in zip(self._passed[:depth], self._reached[:depth], strict=True)
        ]
