"""Win, loss or undecided: the rule that turns an interval into a word."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eagleray.evaluation.bootstrap import Interval
from eagleray.speculation.costs import CyclePoint, anomaly

Word = Literal["win", "loss", "undecided"]

MIN_PROMPTS = 5
"""With fewer, even agreement of all prompts is no evidence: 4 coins agree in 2 * 0.5^4 = 12 % of throws."""
NOISE_RATIO = 1.25
"""How far above the acceptance length a speedup may come out by chance; further, and something else ran while
one side was timed."""


@dataclass(frozen=True)
class Verdict:
    """A word and the reason for it, in one clause."""

    word: Word
    reason: str


def judge(
    speedup: Interval | None,
    timed: int,
    exact_ratio: float,
    tau: float | None = None,
    drawn: str = "prompts",
) -> Verdict:
    """Judge a drafter on one family.

    Args:
        speedup: None where no prompt was timed.
        timed: What the interval was drawn from; `drawn` says of what.
        exact_ratio: Share of drafted answers that equal the plain ones. Below 1.0 speed is not judged:
            a faster way to another answer is not a speedup.
        tau: Acceptance length of the timed answers. A speedup whose whole interval lies above it, or that is
            far above it itself, cannot be and is not judged either. None where nobody told.
    """
    if exact_ratio < 1.0:
        return Verdict("undecided", f"only {exact_ratio:.1%} of the answers equal plain decoding")
    if speedup is None:
        return Verdict("undecided", "speed was not measured")
    if why := impossible(speedup, tau):
        return Verdict("undecided", why)
    if timed < MIN_PROMPTS:
        return Verdict("undecided", f"{timed} timed {drawn} are too few; {MIN_PROMPTS} are needed")
    if speedup.low > 1.0:
        return Verdict("win", "the whole interval lies above 1.0")
    if speedup.high < 1.0:
        return Verdict("loss", "the whole interval lies below 1.0")
    return Verdict("undecided", "the interval holds 1.0")


def impossible(speedup: Interval, tau: float | None) -> str | None:
    """Why a speedup cannot be right, ordinary noise granted; None where it can."""
    if tau is None:
        return None
    least = max(speedup.low, speedup.value / NOISE_RATIO)
    if anomaly(CyclePoint(draft_steps=1, acceptance_length=tau, speedup=least)) is None:
        return None
    return f"impossible: {anomaly(CyclePoint(draft_steps=1, acceptance_length=tau, speedup=speedup.value))}"


def summarise(label: str, families: Mapping[str, Mapping[str, Any]]) -> str:
    """One sentence on a drafter, from the family entries of a report."""
    clauses = []
    for word, verb in (("win", "speeds up"), ("loss", "slows down"), ("undecided", "is undecided on")):
        named = [_clause(family, entry) for family, entry in families.items() if entry["verdict"] == word]
        if named:
            clauses.append(f"{verb} {_join(named)}")
    return f"{label} {_join(clauses)}."


def _clause(family: str, entry: Mapping[str, Any]) -> str:
    parts = []
    if entry["speedup_ratio"] is not None:
        parts.append(
            f"{entry['speedup_ratio']:.2f}x, {entry['speedup_low']:.2f} to {entry['speedup_high']:.2f}"
        )
    if entry["verdict"] == "undecided":
        parts.append(entry["verdict_reason"])
    return f"{family} ({': '.join(parts)})"


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
