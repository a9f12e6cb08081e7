"""From a report to one self-contained page: no script, no request to anywhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from eagleray.evaluation import load_plots, plots
from eagleray.evaluation.comparison import entries

TEMPLATE = "report.html.j2"
MISSING = "not measured"
CONTENTS = (
    ("verdict", "verdict"),
    ("acceptance-length", "acceptance"),
    ("speedup", "speed"),
    ("time", "time"),
    ("prediction", "prediction"),
    ("loads", "load"),
    ("slices", "slices"),
    ("exactness", "exactness"),
    ("training", "training"),
    ("data", "data"),
    ("regime", "regime"),
    ("method", "method"),
)
"""Anchors of the sections, and what the page calls them at its top."""


def render_html(report: dict[str, Any]) -> str:
    """Return the page."""
    has_loads = any(drafter["loads"] for drafter in report["drafters"].values())
    absent = {"loads": not has_loads, "training": not report["training"]}
    return render(
        TEMPLATE,
        report=report,
        contents=[(anchor, name) for anchor, name in CONTENTS if not absent.get(anchor)],
        has_loads=has_loads,
        legend=legend(report),
        time_parts=plots.TIME_PARTS,
        verdicts=entries,
        largest_miss=largest_miss,
        waits=list(_waits(report)),
        acceptance_lengths=plots.acceptance_length_panels(report),
        acceptance_rates=plots.acceptance_rate_panels(report),
        speedups=plots.speedup_panels(report),
        concurrencies=load_plots.concurrency_panels(report),
        throughputs=load_plots.throughput_panels(report),
        times=plots.time_panels(report),
        load_times=load_plots.time_panels(report),
        predictions=load_plots.prediction_panels(report),
        losses=plots.loss_panels(report),
        lengths=plots.length_panels(report),
        regime=[row for row in flatten(report["regime"]) if row[0] != "fingerprint"],
    )


def render(template: str, **context: Any) -> str:
    """Fill a template of this folder with the formats below."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = (decimals, figure, percent, gibibytes, duration, words, spread, ranged)
    environment.filters.update({one.__name__: one for one in formats})
    return environment.get_template(template).render(colours=plots.COLOURS, **context)


def largest_miss(drafter: dict[str, Any], at: str) -> float | None:
    """By how much of the measured speedup the farthest prediction of a load is off; None without one."""
    misses = [
        abs(point["predicted_speedup"] / point["measured_speedup"] - 1.0)
        for point in drafter["prediction"]["points"]
        if point["at"] == at and point["predicted_speedup"] is not None
    ]
    return max(misses, default=None)


def _waits(report: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Server, load and what its users waited for, where that was measured; plain decoding once."""
    for place, (label, drafter) in enumerate(report["drafters"].items()):
        for name, key in (("plain", "plain"), (label, "drafted")):
            for load, entry in drafter["loads"].items():
                if entry[key].get("first_token_s") and (key == "drafted" or place == 0):
                    yield name, load, entry[key]


def spread(entry: dict[str, Any], stem: str) -> str:
    """Format both ends of an interval; empty of nothing."""
    low, high = entry[f"{stem}_low"], entry[f"{stem}_high"]
    return "" if low is None else f"{low:,.2f} to {high:,.2f}"


def ranged(entry: dict[str, float] | None, scale: float = 1.0, unit: str = "") -> str:
    """Format a median between its extremes."""
    if entry is None:
        return MISSING
    low, middle, high = (f"{entry[key] * scale:,.1f}" for key in ("low", "median", "high"))
    return f"{middle}{unit} ({low} to {high})"


def legend(report: dict[str, Any]) -> list[tuple[str, Markup]]:
    """Each drafter and the mark of its series."""
    return [(label, plots.legend_mark(series)) for series, label in enumerate(report["drafters"])]


def decimals(value: float | None, digits: int = 2) -> str:
    """Format a figure; None is not measured."""
    return MISSING if value is None else f"{value:,.{digits}f}"


def figure(value: Any) -> str:
    """Format a fact of any kind; whole numbers get separators."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def percent(value: float | None) -> str:
    """Format a share. What is not quite all of it never reads 100 %."""
    if value is None:
        return MISSING
    text = f"{value:.1%}"
    return "99.9%" if text == "100.0%" and value < 1.0 else text.replace(".0%", "%")


def gibibytes(value: int) -> str:
    """Format bytes."""
    return f"{value / 2**30:.2f} GiB"


def duration(value_s: float) -> str:
    """Format seconds."""
    minutes, seconds = divmod(round(value_s), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{value_s:.1f} s"


def words(name: str) -> str:
    """Write a key as words."""
    return name.replace("_", " ")


def flatten(content: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """List nested mappings as dotted keys and values."""
    rows: list[tuple[str, Any]] = []
    for key, value in content.items():
        name = f"{prefix}{key}"
        rows += flatten(value, f"{name}.") if isinstance(value, dict) else [(name, value)]
    return rows
