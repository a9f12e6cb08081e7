"""One drafter on one kind of prompts: the figures that every slice of every report has, and the worst slice.

Slices are by category and by length, because a drafter that wins on the whole can lose on what matters.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagleray.evaluation.bootstrap import Interval, bootstrap, ratio_of_sums, speedup_of_sums
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.verdict import judge
from eagleray.speculation.acceptance import Cycle, summarize

LENGTH_BOUNDS = (64, 256, 1024, 4096)
"""Prompt tokens at which a slice by length begins; fixed, so that reports have the same slices."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one prompt did with and without the drafter."""

    category: str
    prompt_tokens: int
    cycles: tuple[Cycle, ...] = ()
    """Of the drafted answer; empty where nobody told."""
    times: tuple[float, float, float, float] | None = None
    """Seconds and tokens of plain decoding, then of drafting; None where speed was not measured."""
    same: bool
    """Whether both answers are equal."""


def slice_entry(outcomes: Sequence[Outcome], config: BootstrapConfig) -> dict[str, Any]:
    """The figures of one slice, which has at least one prompt."""
    times = [outcome.times for outcome in outcomes if outcome.times is not None]
    counts = [
        [sum(cycle.delivered for cycle in outcome.cycles), len(outcome.cycles)]
        for outcome in outcomes
        if outcome.cycles
    ]
    speedup = bootstrap(times, speedup_of_sums, config) if times else None
    tau = bootstrap(counts, ratio_of_sums, config) if counts else None
    exact = sum(outcome.same for outcome in outcomes) / len(outcomes)
    verdict = judge(speedup, len(times), exact, tau.value if tau else None)
    acceptance = summarize(cycle for outcome in outcomes for cycle in outcome.cycles)
    return {
        "verdict": verdict.word,
        "verdict_reason": verdict.reason,
        **spread("speedup", speedup, ratio=True),
        **spread("acceptance_length", tau),
        "acceptance_rate_by_slot": list(acceptance.acceptance_rate_by_slot),
        "greedy_exact_ratio": exact,
        "prompts": len(outcomes),
        "timed_prompts": len(times),
    }


def slice_entries(outcomes: Sequence[Outcome], config: BootstrapConfig) -> dict[str, dict[str, Any]]:
    """Entries by category and by length, under names that say which."""
    shortest_first = sorted(outcomes, key=lambda outcome: outcome.prompt_tokens)
    return {**_entries(outcomes, _category, config), **_entries(shortest_first, _length, config)}


def worst_slice(entries: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Name of the slice with the least speedup; where speed was not measured, the least acceptance length."""
    for figure in ("speedup_ratio", "acceptance_length"):
        known = {name: entry[figure] for name, entry in entries.items() if entry[figure] is not None}
        if known:
            return min(known, key=lambda name: known[name])
    return None


def category_entries(outcomes: Iterable[Outcome], config: BootstrapConfig) -> dict[str, dict[str, Any]]:
    """Entries by category, under the categories' own names."""
    return _entries(outcomes, lambda outcome: outcome.category, config)


def spread(name: str, interval: Interval | None, *, ratio: bool = False) -> dict[str, float | None]:
    """A figure and the ends of its interval under the keys of reports."""
    value = f"{name}_ratio" if ratio else name
    if interval is None:
        return {value: None, f"{name}_low": None, f"{name}_high": None}
    return {value: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _entries(
    outcomes: Iterable[Outcome], name: Callable[[Outcome], str], config: BootstrapConfig
) -> dict[str, dict[str, Any]]:
    members: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        members.setdefault(name(outcome), []).append(outcome)
    return {title: slice_entry(chosen, config) for title, chosen in members.items()}


def _category(outcome: Outcome) -> str:
    return f"category {outcome.category}"


def _length(outcome: Outcome) -> str:
    low, high = 1, None
    for bound in LENGTH_BOUNDS:
        if outcome.prompt_tokens < bound:
            high = bound - 1
            break
        low = bound
    return f"prompts of {low} to {high} tokens" if high else f"prompts of {low} tokens and more"
