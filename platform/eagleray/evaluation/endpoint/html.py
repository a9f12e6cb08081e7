"""The page of an endpoint's report, in the style of the other one."""

from typing import Any

from eagleray.drawing.charts import Line, Point, line_panel
from eagleray.drawing.svg import nice_ticks
from eagleray.evaluation.html import flatten, legend, render
from eagleray.evaluation.plots import Panel

CLOSED = "closed-"
TEMPLATE = "endpoint/report.html.j2"
PLAIN_SERIES = 5
"""The grey one: plain decoding is what the others are held against."""


def render_endpoint_html(report: dict[str, Any]) -> str:
    """Return the page."""
    return render(
        TEMPLATE,
        report=report,
        legend=legend(report),
        speedups=speedup_panel(report),
        curves=throughput_latency_panels(report),
        regime=[row for row in flatten(report["regime"]) if row[0] != "fingerprint"],
    )


def speedup_panel(report: dict[str, Any]) -> Panel | None:
    """Speedup by concurrency with its interval, a line per drafter."""
    lines = [
        Line(
            label,
            series,
            tuple(
                Point(concurrency, entry["speedup_ratio"], entry["speedup_low"], entry["speedup_high"])
                for concurrency, entry in closed_loops(drafter)
            ),
        )
        for series, (label, drafter) in enumerate(report["drafters"].items())
    ]
    points = [point for line in lines for point in line.points]
    if not points:
        return None
    x_ticks = sorted({point.x for point in points})
    y_ticks = nice_ticks(
        min(1.0, *(point.low or 1.0 for point in points)), max(1.0, *(point.high or 1.0 for point in points))
    )
    # A single concurrency has no width of its own.
    x_ticks = x_ticks if len(x_ticks) > 1 else [x_ticks[0], x_ticks[0] + 1]
    image = line_panel("Speedup by concurrency", lines, x_ticks, y_ticks, "requests at once", 1.0)
    return Panel("decode speed per user, over plain", image)


def throughput_latency_panels(report: dict[str, Any]) -> list[Panel]:
    """Tokens per second in all against those of one user, with and without each drafter."""
    panels = []
    for series, (label, drafter) in enumerate(report["drafters"].items()):
        entries = [entry for _, entry in closed_loops(drafter)]
        lines = [
            Line(label, series, _curve(entries, "drafted")),
            Line("plain", PLAIN_SERIES, _curve(entries, "plain")),
        ]
        points = [point for line in lines for point in line.points]
        if len(entries) < 2 or not points:
            continue
        x_ticks = nice_ticks(0.0, max(point.x for point in points))
        y_ticks = nice_ticks(0.0, max(point.y for point in points))
        image = line_panel(label, lines, x_ticks, y_ticks, "tokens/s of one user (median)")
        panels.append(Panel(f"{label}: tokens/s in all", image))
    return panels


def closed_loops(drafter: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Concurrency and entry of each closed loop, in rising order."""
    closed = [
        (int(name.removeprefix(CLOSED)), entry)
        for name, entry in drafter["loads"].items()
        if name.startswith(CLOSED)
    ]
    return sorted(closed, key=lambda pair: pair[0])


def _curve(entries: list[dict[str, Any]], side: str) -> tuple[Point, ...]:
    return tuple(
        Point(entry[side]["user_tokens_per_s"]["p50"], entry[side]["tokens_per_s"])
        for entry in entries
        if entry[side]["user_tokens_per_s"]
    )
