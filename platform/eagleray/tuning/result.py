"""What a study came to, as a file: for the page, for recommendations, and for later sweeps to start from."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eagleray.errors import ConfigError, DataError
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.regime import Regime
from eagleray.settings import Settings
from eagleray.tuning.config import Objective, Point
from eagleray.tuning.outcome import Outcome, Scale, ratio
from eagleray.tuning.space import Space

WARM_POINTS = 3
"""Points that a sweep takes over from each earlier result."""


class TrialSummary(Settings):
    """One trial."""

    number: int
    point: Point
    state: Literal["running", "complete", "infeasible", "pruned", "failed"]
    outcome: Outcome | None = None
    reason: str | None = None
    rungs: dict[int, float] = {}
    """Resource -> replay tau, of trials that train."""
    facts: dict[str, Any] = {}
    """What else is known of it: of trials that train, CPU seconds and the best depth."""


class Confirmation(Settings):
    """The last measurement: the contenders interleaved, prompt by prompt."""

    outcomes: tuple[Outcome, ...]
    chosen: Point
    over_default: Literal["better", "tie", "default"]
    """Whether the chosen point beats the default beyond the noise, or is the default."""
    ratio: float
    """The chosen point's first objective over the default's."""
    low: float
    high: float


class Result(Settings):
    """Everything that a study found, in one regime."""

    study: str
    workload: str
    generated_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    regime: Regime
    regime_fingerprint: str
    objectives: tuple[Objective, ...]
    scale: Scale
    default: Point
    trials: tuple[TrialSummary, ...]
    ties: tuple[Point, ...]
    """Points whose difference from the best trial is inside the noise."""
    front: tuple[Point, ...]
    """The Pareto front; with one objective, the best trial."""
    importances: dict[str, float] = {}
    """By parameter; see the page for what they are."""
    confirmation: Confirmation | None = None
    """None where nothing feasible was measured."""

    @property
    def outcomes(self) -> list[Outcome]:
        """Of the trials that were measured to their end."""
        return [
            t.outcome for t in self.trials if t.outcome is not None and t.state in ("complete", "infeasible")
        ]


def choose(
    outcomes: Sequence[Outcome], default: Point, objective: Objective, scale: Scale, config: BootstrapConfig
) -> Confirmation:
    """Choose among contenders that were measured interleaved; the default is one of them."""
    standing = next(outcome for outcome in outcomes if outcome.point == default)
    feasible = [outcome for outcome in outcomes if outcome.feasible] or [standing]
    chosen = max(feasible, key=lambda outcome: outcome.figures[objective].value)
    over = ratio(chosen, standing, objective, scale, config)
    tie = over.low <= 1.0 <= over.high
    return Confirmation(
        outcomes=tuple(outcomes),
        chosen=chosen.point,
        over_default="default" if chosen is standing else "tie" if tie else "better",
        ratio=over.value,
        low=over.low,
        high=over.high,
    )


def read_result(path: Path) -> Result:
    """Read a result file.

    Raises:
        DataError: It is missing, or not a result.
    """
    try:
        return Result.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not the result of a sweep ({error}). Give a best_*.json that jobs.sweep wrote."
        ) from None


def best_points(result: Result, count: int) -> list[Point]:
    """The confirmed choice and the best trials, best first: where a sweep of another regime may start."""
    objective = result.objectives[0]
    feasible = [outcome for outcome in result.outcomes if outcome.feasible]
    ranked = sorted(feasible, key=lambda outcome: -outcome.figures[objective].value)
    chosen = [result.confirmation.chosen] if result.confirmation else []
    return list(dict.fromkeys([*chosen, *(outcome.point for outcome in ranked)]))[:count]


def warm_points(paths: Sequence[Path], space: Space) -> list[Point]:
    """The best points of earlier results that a space holds.

    Raises:
        DataError: A file is not a result.
    """
    points = []
    for path in paths:
        for point in best_points(read_result(path), WARM_POINTS):
            try:
                space.params(point)
            except ConfigError:
                continue
            points.append(point)
    return points


def to_plain(result: Result) -> dict[str, Any]:
    """As JSON content."""
    return result.model_dump(mode="json")
