"""From a report to one self-contained page: no script, no request to anywhere."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from eagleray.evaluation import plots

TEMPLATE = "report.html.j2"
MISSING = "not measured"


def render_html(report: dict[str, Any]) -> str:
    """Return the page."""
    return render(
        TEMPLATE,
        report=report,
        legend=legend(report),
        time_parts=plots.TIME_PARTS,
        acceptance_lengths=plots.acceptance_length_panels(report),
        acceptance_rates=plots.acceptance_rate_panels(report),
        speedups=plots.speedup_panels(report),
        times=plots.time_panels(report),
        losses=plots.loss_panels(report),
        lengths=plots.length_panels(report),
        regime=[row for row in flatten(report["regime"]) if row[0] != "fingerprint"],
    )


def render(template: str, **context: Any) -> str:
    """Fill a template of this folder; all of them share the style sheet and the formats below."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        decimals=decimals, figure=figure, percent=percent, gibibytes=gibibytes, duration=duration, words=words
    )
    return environment.get_template(template).render(colours=plots.COLOURS, **context)


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
