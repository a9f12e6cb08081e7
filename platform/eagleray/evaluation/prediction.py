"""Measured speed against the cost of a cycle: a prediction that misses says that something else was measured.

What a cycle costs, in plain steps, depends on the drafter, its depth, the batch and the machine, but not on
the prompts; what it yields, tau, does. So the speed on one kind of prompts is predicted from its tau and from
the cost that all the others showed (`CycleCost`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from eagleray.speculation.costs import CycleCost, CyclePoint


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A speed, on one kind of prompts, at one concurrency."""

    at: str
    """What the cost of a cycle holds for: the load."""
    category: str
    point: CyclePoint


def predict_speeds(measured: Sequence[Measured]) -> dict[str, Any]:
    """Return the report's `prediction` of one drafter: costs by load, and every point with its prediction.

    The prediction of a point is None where no other category was measured at its load.
    """
    loads: dict[str, list[Measured]] = {}
    for one in measured:
        loads.setdefault(one.at, []).append(one)
    return {
        "costs": {at: _cost_entry([one.point for one in members]) for at, members in loads.items()},
        "points": [
            {
                "at": one.at,
                "category": one.category,
                "depth": one.point.draft_steps,
                "acceptance_length": one.point.acceptance_length,
                "measured_speedup": one.point.speedup,
                "predicted_speedup": _predict(one, loads[one.at]),
            }
            for one in measured
        ],
    }


def fit_cost(points: Sequence[CyclePoint]) -> CycleCost:
    """Cost of a cycle over its depth; where one depth alone was measured, the mean, whatever the depth."""
    if len({point.draft_steps for point in points}) > 1:
        return CycleCost.fit(points)
    return CycleCost(fixed=mean(point.acceptance_length / point.speedup for point in points), per_step=0.0)


def _predict(one: Measured, members: Sequence[Measured]) -> float | None:
    others = [other.point for other in members if other.category != one.category]
    if not others:
        return None
    return fit_cost(others).speedup(one.point.acceptance_length, one.point.draft_steps)


def _cost_entry(points: Sequence[CyclePoint]) -> dict[str, float]:
    cost = fit_cost(points)
    return {"fixed_steps": cost.fixed, "steps_per_draft_token": cost.per_step}
