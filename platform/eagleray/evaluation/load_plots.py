"""Figures of what happens as more is asked at once, and of what the cost of a cycle predicts."""

from collections.abc import Sequence
from typing import Any

from eagleray.drawing.charts import Bar, Line, Point, bar_panel, line_panel, point_panel
from eagleray.drawing.svg import nice_ticks
from eagleray.evaluation.plots import COLOURS, Panel

PLAIN_SERIES = COLOURS - 1
"""The grey one: plain decoding is what the others are held against."""


def concurrency_panels(report: dict[str, Any]) -> list[Panel]:
    """Speedup by concurrency with its interval, a line per drafter; nothing from a single concurrency."""
    lines = [
        Line(
            label,
            series % COLOURS,
            tuple(
                Point(concurrency, entry["speedup_ratio"], entry["speedup_low"], entry["speedup_high"])
                for concurrency, entry in by_concurrency(drafter)
            ),
        )
        for series, (label, drafter) in enumerate(report["drafters"].items())
    ]
    points = [point for line in lines for point in line.points]
    x_ticks = sorted({point.x for point in points})
    if len(x_ticks) < 2:
        return []
    ends = [end for point in points for end in (point.low, point.high) if end is not None]
    y_ticks = nice_ticks(min(1.0, *ends), max(1.0, *ends))
    image = line_panel("Speedup by concurrency", lines, x_ticks, y_ticks, "requests at once", 1.0)
    return [Panel("speedup by concurrency", image)]


def throughput_panels(report: dict[str, Any]) -> list[Panel]:
    """Tokens per second in all against those of one user, with and without each drafter."""
    curves = []
    for series, (label, drafter) in enumerate(report["drafters"].items()):
        entries = [entry for _, entry in by_concurrency(drafter)]
        if len(entries) > 1:
            drafted = Line(label, series % COLOURS, _curve(entries, "drafted"))
            curves.append((label, [drafted, Line("plain", PLAIN_SERIES, _curve(entries, "plain"))]))
    points = [point for _, lines in curves for line in lines for point in line.points]
    if not points:
        return []
    x_ticks = nice_ticks(0.0, max(point.x for point in points))
    y_ticks = nice_ticks(0.0, max(point.y for point in points))
    return [
        Panel(
            f"{label}: tokens/s in all",
            line_panel(label, lines, x_ticks, y_ticks, "tokens/s of one user (median)"),
        )
        for label, lines in curves
    ]


def time_panels(report: dict[str, Any]) -> list[Panel]:
    """Milliseconds of the engine per token under each load, split into draft, verify and host."""
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for label, drafter in report["drafters"].items():
        for load, entry in drafter["loads"].items():
            for name, side in (("plain", entry["plain"]), (label, entry["drafted"])):
                if (parts := side["engine_ms_per_token"]) is not None:
                    rows.setdefault(load, {})[name] = parts
    slowest = max((sum(parts.values()) for sides in rows.values() for parts in sides.values()), default=0.0)
    return [
        Panel(load, bar_panel(load, _time_bars(sides), nice_ticks(0.0, slowest, 4), "ms per token"))
        for load, sides in rows.items()
    ]


def _time_bars(sides: dict[str, dict[str, float]]) -> list[Bar]:
    return [
        Bar(
            name,
            tuple((f"part-{part}", ms, f"{name}, {part}: {ms:.1f} ms") for part, ms in parts.items()),
            f"{sum(parts.values()):.1f}",
        )
        for name, parts in sides.items()
    ]


def prediction_panels(report: dict[str, Any]) -> list[Panel]:
    """Measured speedup over the predicted one; on the diagonal the cost model holds."""
    lines = [
        Line(
            label,
            series % COLOURS,
            tuple(
                Point(point["predicted_speedup"], point["measured_speedup"])
                for point in drafter["prediction"]["points"]
                if point["predicted_speedup"] is not None
            ),
        )
        for series, (label, drafter) in enumerate(report["drafters"].items())
    ]
    values = [value for line in lines for point in line.points for value in (point.x, point.y)]
    if not values:
        return []
    ticks = nice_ticks(0.0, max(values))
    image = point_panel(
        "Measured over predicted speedup", lines, ticks, ticks, "predicted speedup", "", diagonal=True
    )
    return [Panel("measured speedup", image)]


def by_concurrency(drafter: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Concurrency and entry of each load that keeps one, in rising order."""
    known = [(entry["concurrency"], entry) for entry in drafter["loads"].values() if entry["concurrency"]]
    return sorted(known, key=lambda pair: pair[0])


def _curve(entries: Sequence[dict[str, Any]], side: str) -> tuple[Point, ...]:
    return tuple(
        Point(entry[side]["user_tokens_per_s"]["p50"], entry[side]["tokens_per_s"])
        for entry in entries
        if entry[side]["user_tokens_per_s"]
    )
