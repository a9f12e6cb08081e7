"""Answers from past sweeps: what was measured in a regime, what follows from it, and what nobody knows.

A result holds in its regime alone. The best depth changes with the tensor-parallel degree, the batch and
the prompts, so a setting is never carried over in silence: it is refused, with the fields that differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagleray.errors import DataError
from eagleray.speculation.costs import CycleCost, CyclePoint, anomaly
from eagleray.tuning.config import PLAIN, Point
from eagleray.tuning.outcome import Outcome
from eagleray.tuning.result import Result, read_result

WORKLOAD = "workload"
"""May be asked for beside the fields of a regime."""
MIN_DEPTHS = 3
"""Measured depths from which the cost of a cycle is fitted."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A depth that was not measured, between two that were."""

    point: Point
    speedup: float
    between: tuple[int, int]
    """The measured depths around it."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """An answer, and how far it may be trusted."""

    result: Result
    differing: tuple[str, ...]
    """Fields of the wanted regime in which the result was measured otherwise; empty: it is of that regime."""
    open_fields: tuple[str, ...]
    """Fields of the regime that were not asked for, and were taken as they were measured."""
    predictions: tuple[Prediction, ...]
    """Only where nothing differs."""

    @property
    def measured(self) -> bool:
        """Whether the answer is a measurement of the wanted regime."""
        return not self.differing


def read_memory(folder: Path) -> list[Result]:
    """All results of a memory folder, newest first.

    Raises:
        DataError: There are none, or a file is not a result.
    """
    results = [read_result(path) for path in sorted(folder.glob("*.json"))]
    if not results:
        raise DataError(f"There is no result in {folder}. Run a sweep first: `python -m jobs.sweep --help`.")
    return sorted(results, key=lambda result: result.generated_at, reverse=True)


def advise(memory: Sequence[Result], wanted: Mapping[str, Any]) -> Advice:
    """Find the newest result of the wanted regime, or else the one that differs least.

    Args:
        memory: At least one result.
        wanted: Dotted fields of a regime, and `workload`, with their values.

    Raises:
        DataError: A field is one that no regime has.
    """
    known = {name for result in memory for name in _fields(result)}
    if unknown := sorted(wanted.keys() - known):
        raise DataError(f"No regime has a field {unknown[0]!r}. Fields: {', '.join(sorted(known))}.")
    result = min(memory, key=lambda each: len(_differing(each, wanted)))
    differing = tuple(_differing(result, wanted))
    return Advice(
        result=result,
        differing=differing,
        open_fields=tuple(sorted(_fields(result).keys() - wanted.keys())),
        predictions=() if differing else tuple(predict(result.outcomes)),
    )


def require_measured(advice: Advice) -> None:
    """Refuse to carry a setting over into another regime.

    Raises:
        DataError: The wanted regime was not measured; names the nearest result and what differs.
    """
    if advice.measured:
        return
    found = advice.result.confirmation
    setting = found.chosen.name if found else "nothing"
    raise DataError(
        f"This regime was never measured. The nearest is {advice.result.regime_fingerprint} of study "
        f"{advice.result.study}, where {setting} was chosen, but there {'; '.join(advice.differing)}. What "
        "is best there can be a loss here. Run a sweep in this regime, or pass --cross-regime to see that "
        "result under its own name."
    )


def predict(outcomes: Sequence[Outcome]) -> list[Prediction]:
    """Speedups at depths between measured ones: tau is interpolated, the cost of a cycle is fitted
    (`CycleCost`). A measurement that cannot be right is left out."""
    predictions = []
    for label, block in dict.fromkeys((o.point.drafter, o.point.values.get("block_size")) for o in outcomes):
        curve = {
            int(str(o.point.values["depth"])): o
            for o in outcomes
            if (o.point.drafter, o.point.values.get("block_size")) == (label, block) and _plausible(o)
        }
        if label != PLAIN and len(curve) >= MIN_DEPTHS:
            predictions += _between(curve)
    return predictions


def _plausible(outcome: Outcome) -> bool:
    """Whether it drafts chains of a fixed depth, and no faster than its tau allows."""
    if set(outcome.point.values) - {"depth", "block_size"} or "depth" not in outcome.point.values:
        return False
    figures = outcome.figures
    point = CyclePoint(
        draft_steps=int(str(outcome.point.values["depth"])),
        acceptance_length=figures["tau"].value,
        speedup=figures["speedup"].value,
    )
    return anomaly(point) is None


def _between(curve: Mapping[int, Outcome]) -> list[Prediction]:
    depths = sorted(curve)
    points = [
        CyclePoint(
            draft_steps=depth,
            acceptance_length=curve[depth].figures["tau"].value,
            speedup=curve[depth].figures["speedup"].value,
        )
        for depth in depths
    ]
    cost = CycleCost.fit(points)
    taus = [point.acceptance_length for point in points]
    like = curve[depths[0]].point
    predictions = []
    for depth in range(depths[0], depths[-1]):
        if depth not in curve:
            tau = float(np.interp(depth, depths, taus))
            predictions.append(
                Prediction(
                    point=like.model_copy(update={"values": {**like.values, "depth": depth}}),
                    speedup=cost.speedup(tau, depth),
                    between=(
                        max(each for each in depths if each < depth),
                        min(each for each in depths if each > depth),
                    ),
                )
            )
    return predictions


def _fields(result: Result) -> dict[str, Any]:
    flat: dict[str, Any] = {WORKLOAD: result.workload}

    def walk(content: Mapping[str, Any], place: str) -> None:
        for key, value in content.items():
            if isinstance(value, Mapping):
                walk(value, f"{place}{key}.")
            else:
                flat[f"{place}{key}"] = value

    walk(result.regime.model_dump(mode="json"), "")
    return flat


def _differing(result: Result, wanted: Mapping[str, Any]) -> list[str]:
    fields = _fields(result)
    return [
        f"{name} is {fields.get(name)!r}, wanted {value!r}"
        for name, value in wanted.items()
        if fields.get(name) != value
    ]
