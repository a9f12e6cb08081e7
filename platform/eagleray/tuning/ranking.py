"""From outcomes to a choice: the best, what ties with it, and the front where objectives are several."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagleray.evaluation.config import BootstrapConfig
from eagleray.tuning.config import Objective, Point
from eagleray.tuning.outcome import Outcome, Scale, tied


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Outcomes of one study, best first."""

    ranked: tuple[Outcome, ...]
    """Feasible ones, one per point, by the first objective."""
    ties: tuple[Outcome, ...]
    """Others whose difference from the best is inside the noise."""
    front: tuple[Outcome, ...]
    """Those that no other beats in every objective; with one objective, the best alone."""

    @property
    def best(self) -> Outcome | None:
        """None where nothing feasible was measured."""
        return self.ranked[0] if self.ranked else None


def rank(
    outcomes: Sequence[Outcome], objectives: Sequence[Objective], scale: Scale, config: BootstrapConfig
) -> Ranking:
    """Order what was measured.

    Args:
        outcomes: Of the same prompts, in any order.
    """
    feasible = [outcome for outcome in outcomes if outcome.feasible]
    first = objectives[0]
    ranked = sorted(feasible, key=lambda outcome: -outcome.figures[first].value)
    ties = [other for other in ranked[1:] if tied(ranked[0], other, first, scale, config)]
    front = [one for one in ranked if not any(dominates(other, one, objectives) for other in ranked)]
    return Ranking(ranked=tuple(ranked), ties=tuple(ties), front=tuple(front))


def dominates(a: Outcome, b: Outcome, objectives: Sequence[Objective]) -> bool:
    """Whether `a` is at least as good as `b` in every objective, and better in one."""
    pairs = [(a.figures[name].value, b.figures[name].value) for name in objectives]
    return all(one >= other for one, other in pairs) and any(one > other for one, other in pairs)


def contenders(ranking: Ranking, default: Point) -> tuple[Point, ...]:
    """Whom the last, interleaved measurement is between: the best, the runner-up and the default."""
    return tuple(dict.fromkeys([*(outcome.point for outcome in ranking.ranked[:2]), default]))
