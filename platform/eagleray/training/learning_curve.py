"""What replay tau early in a run says of the rest: that few tokens give a low tau is no fault.

Tau grows about evenly with the logarithm of the tokens seen, until the drafter's size or the data end it. So
trials at 1, 3 and 10 % of a run and at its end are a straight line on that scale.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import linear_regression

EARLY_SHARES = (0.01, 0.03, 0.1)
"""Of all steps, where a trial is made beside the regular ones."""
SHORTEST_RUN = 100
"""Steps of a run whose hundredth is a step."""
FLAT = 0.05
"""Tau per tenfold below which nothing is learned."""


def early_trials(total_steps: int) -> frozenset[int]:
    """Steps after which a trial is made for the curve alone."""
    if total_steps < SHORTEST_RUN:
        return frozenset()
    return frozenset(round(total_steps * share) for share in EARLY_SHARES)


def read_curve(steps: Sequence[Mapping[str, float]]) -> list[tuple[float, float]]:
    """Share of the run and replay tau of the early trials and the last one, from a run's log."""
    tried = {int(step["step"]): step["replay_tau"] for step in steps if "replay_tau" in step}
    if not tried:
        return []
    total = int(steps[-1]["total_steps"])
    wanted = sorted(early_trials(total) | {max(tried)})
    return [(step / total, tried[step]) for step in wanted if step in tried]


def per_tenfold(curve: Sequence[tuple[float, float]]) -> float:
    """Slope of tau over the decimal logarithm of the share, by least squares."""
    shares, taus = zip(*curve, strict=True)
    return linear_regression([math.log10(share) for share in shares], taus).slope


def describe_curve(curve: Sequence[tuple[float, float]]) -> str | None:
    """What to expect of more data, in words; None where the run was too short to tell."""
    if len(curve) < len(EARLY_SHARES):
        return None
    slope = per_tenfold(curve)
    found = ", ".join(f"{tau:.2f} at {share:.0%}" for share, tau in curve)
    if slope < FLAT:
        return (
            f"Replay tau was {found} of the steps: it did not grow. Unless the run began from trained "
            "weights, something is wrong: look at the features, the vocabulary and the learning rate."
        )
    tenfold = curve[-1][1] + slope
    return (
        f"Replay tau was {found} of the steps, about {slope:.2f} for each tenfold. A low tau after few "
        "tokens is what this line says, and no fault; ten times the data would give about "
        f"{tenfold:.1f}, while the line stays straight."
    )
