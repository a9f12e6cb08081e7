"""Two reports side by side, if they may stand side by side: numbers of different regimes are not compared.

What is compared is the drafters, so their hashes may differ and are shown; everything else that a number
depends on must be equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eagleray.errors import DataError
from eagleray.evaluation.bootstrap import Interval
from eagleray.settings import differences

SUBJECT = ("drafter_hashes", "drafts", "fingerprint")
"""Fields of a regime that name what is compared, or the regime itself."""

CROSS_REGIME = "CROSS-REGIME: these numbers were measured under different conditions"

Report = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of one drafter on one family, in both reports."""

    label: str
    family: str
    figure: Literal["acceptance_length", "speedup_ratio"]
    first: Interval
    second: Interval
    verdicts: tuple[str, str]

    @property
    def outcome(self) -> str:
        """What can be said without pairing: intervals that do not touch differ."""
        if self.second.low > self.first.high:
            return "higher"
        return "lower" if self.second.high < self.first.low else "undecided"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two reports say of the drafters and families they share."""

    rows: tuple[Row, ...]
    differing: tuple[str, ...]
    """Fields of the regime that differ; empty unless a comparison across regimes was asked for."""


def entries(drafter: Mapping[str, Any]) -> dict[str, Any]:
    """All entries of one drafter that have a verdict: families of prompts, and loads."""
    return {**drafter["families"], **drafter["loads"]}


def differing_fields(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Name every value of two regimes that differs, with both values; what is compared is left out."""
    one, other = ({key: of[key] for key in of if key not in SUBJECT} for of in (first, second))
    return differences(one, other)


def compare_reports(first: Report, second: Report, *, cross_regime: bool = False) -> Comparison:
    """Put two reports side by side.

    Args:
        cross_regime: Compare even though the regimes differ; what differs is then part of the result.

    Raises:
        DataError: The regimes differ, or the reports share no drafter and family.
    """
    differing = tuple(differing_fields(first["regime"], second["regime"]))
    if differing and not cross_regime:
        raise DataError(
            f"The reports are of different regimes: {'; '.join(differing)}. Measure both in one regime, or "
            "ask for the comparison with --cross-regime, which labels it."
        )
    rows = tuple(row for label in first["drafters"] for row in _rows(label, first, second))
    if not rows:
        raise DataError(
            f"The reports share no drafter and family: one is of {_names(first)}, the other of "
            f"{_names(second)}. Give the drafters that are to be compared the same label."
        )
    return Comparison(rows=rows, differing=differing)


def _rows(label: str, first: Report, second: Report) -> list[Row]:
    if label not in second["drafters"]:
        return []
    families, others = (entries(report["drafters"][label]) for report in (first, second))
    rows = []
    for family in (family for family in families if family in others):
        pair = families[family], others[family]
        for figure in ("acceptance_length", "speedup_ratio"):
            intervals = [_interval(entry, figure) for entry in pair]
            if intervals[0] is not None and intervals[1] is not None:
                rows.append(
                    Row(
                        label=label,
                        family=family,
                        figure=figure,
                        first=intervals[0],
                        second=intervals[1],
                        verdicts=(pair[0]["verdict"], pair[1]["verdict"]),
                    )
                )
    return rows


def _interval(entry: Mapping[str, Any], figure: str) -> Interval | None:
    stem = figure.removesuffix("_ratio")
    if entry[figure] is None:
        return None
    return Interval(entry[figure], entry[f"{stem}_low"], entry[f"{stem}_high"])


def _names(report: Report) -> str:
    families = sorted({name for drafter in report["drafters"].values() for name in entries(drafter)})
    return f"{', '.join(report['drafters'])} on {', '.join(families)}"
