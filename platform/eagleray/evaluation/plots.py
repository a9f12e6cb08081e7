"""From a report to its figures: one panel per family, all panels of a figure on one scale."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from eagleray.drawing.charts import Bar, Line, Point, bar_panel, line_panel
from eagleray.drawing.svg import marker_shape, nice_ticks

COLOURS = 6
"""Series colours in the style sheet; a seventh drafter takes the first colour again."""
MAX_CURVE_POINTS = 160

TIME_PARTS = ("draft", "verify", "host")


@dataclass(frozen=True)
class Panel:
    """One small chart with its heading."""

    title: str
    image: Markup


def acceptance_length_panels(report: dict[str, Any]) -> list[Panel]:
    """Acceptance length at the best depth with its interval, a bar per drafter."""
    entries = {family: _entries(report, family) for family in report["workloads"]}
    highest = max((entry["acceptance_length_high"] or 1.0 for _, _, entry in _all(entries)), default=1.0)
    ticks = nice_ticks(0.0, max(highest, 1.0))
    panels = []
    for family, rows in entries.items():
        bars = [
            Bar(
                label,
                ((f"series-{series}", entry["acceptance_length"], _tau_tip(label, entry)),),
                f"{entry['acceptance_length']:.2f}",
                (entry["acceptance_length_low"], entry["acceptance_length_high"]),
            )
            for series, label, entry in rows
            if entry["acceptance_length"] is not None
        ]
        panels.append(Panel(family, bar_panel(family, bars, ticks, "tokens per verification", 1.0)))
    return panels


def acceptance_rate_panels(report: dict[str, Any]) -> list[Panel]:
    """Acceptance rate by slot at the best depth."""
    entries = {family: _entries(report, family) for family in report["workloads"]}
    slots = max((len(entry["acceptance_rate_by_slot"]) for _, _, entry in _all(entries)), default=1)
    x_ticks = [float(slot) for slot in range(1, max(slots, 2) + 1)]
    panels = []
    for family, rows in entries.items():
        lines = [
            Line(
                label,
                series,
                _slot_points(entry["acceptance_rate_by_slot"]),
            )
            for series, label, entry in rows
        ]
        panels.append(
            Panel(family, line_panel(family, lines, x_ticks, [0.0, 0.25, 0.5, 0.75, 1.0], "draft slot"))
        )
    return panels


def speedup_panels(report: dict[str, Any]) -> list[Panel]:
    """Speedup by depth with its interval."""
    entries = {family: _entries(report, family) for family in report["workloads"]}
    timed = [
        (int(depth), figures)
        for _, _, entry in _all(entries)
        for depth, figures in entry["by_depth"].items()
        if figures["speedup_ratio"] is not None
    ]
    if not timed:
        return []
    deepest = max(depth for depth, _ in timed)
    shallowest = min(min(depth for depth, _ in timed), deepest - 1)
    x_ticks = [float(depth) for depth in range(shallowest, deepest + 1)]
    y_ticks = nice_ticks(
        min(1.0, *(figures["low"] for _, figures in timed)),
        max(1.0, *(figures["high"] for _, figures in timed)),
    )
    panels = []
    for family, rows in entries.items():
        lines = [Line(label, series, _speedup_points(entry)) for series, label, entry in rows]
        panels.append(Panel(family, line_panel(family, lines, x_ticks, y_ticks, "draft depth", 1.0)))
    return panels


def time_panels(report: dict[str, Any]) -> list[Panel]:
    """Milliseconds per token, split into draft, verify and host; plain decoding on top."""
    entries = {
        family: [row for row in _entries(report, family) if _has_times(row[2])]
        for family in report["workloads"]
    }
    timed = [entry for _, _, entry in _all(entries)]
    if not timed:
        return []
    slowest_s = max(1.0 / entry[rate] for entry in timed for rate in ("tokens_per_s", "plain_tokens_per_s"))
    ticks = nice_ticks(0.0, slowest_s * 1e3, 4)
    panels = []
    for family, rows in entries.items():
        bars = [_time_bar(label, entry) for _, label, entry in rows]
        if bars:
            plain_ms = 1e3 / rows[0][2]["plain_tokens_per_s"]
            plain = Bar("plain", (("part-plain", plain_ms, f"plain: {plain_ms:.1f} ms"),), f"{plain_ms:.1f}")
            panels.append(Panel(family, bar_panel(family, [plain, *bars], ticks, "ms per token")))
    return panels


def loss_panels(report: dict[str, Any]) -> list[Panel]:
    """Training loss by step, a panel per trained drafter: losses of different algorithms do not compare."""
    panels = []
    labels = list(report["drafters"])
    for label, training in report["training"].items():
        curve = _thin(training["loss_curve"])
        if len(curve) < 2:
            continue
        points = tuple(Point(step, loss) for step, loss in curve)
        line = Line(label, labels.index(label) % COLOURS, points)
        y_ticks = nice_ticks(min(0.0, *(y for _, y in curve)), max(y for _, y in curve))
        x_ticks = [tick for tick in nice_ticks(0.0, curve[-1][0]) if tick <= curve[-1][0]]
        image = line_panel(f"{label} loss", [line], x_ticks, y_ticks, "optimiser step", marks=False)
        panels.append(Panel(label, image))
    return panels


def length_panels(report: dict[str, Any]) -> list[Panel]:
    """Rows of the training data by length."""
    dataset = report["dataset"]
    if not dataset or not dataset["length_histogram"]:
        return []
    histogram = dataset["length_histogram"]
    bars = [
        Bar(name, (("part-verify", rows, f"{name} tokens: {rows:,} samples"),), f"{rows:,}")
        for name, rows in histogram.items()
    ]
    image = bar_panel("Lengths", bars, nice_ticks(0.0, max(histogram.values()), 4), "samples")
    return [Panel("tokens per sample", image)]


def legend_mark(series: int) -> Markup:
    """The mark of a series, for the legend."""
    return Markup('<svg class="key" viewBox="0 0 14 14" aria-hidden="true">{}</svg>').format(
        marker_shape(7, 7, series % COLOURS, "")
    )


def _entries(report: dict[str, Any], family: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Series number, label and family entry of every drafter that has one."""
    return [
        (series % COLOURS, label, drafter["families"][family])
        for series, (label, drafter) in enumerate(report["drafters"].items())
        if family in drafter["families"]
    ]


def _all(
    entries: dict[str, list[tuple[int, str, dict[str, Any]]]],
) -> Iterable[tuple[int, str, dict[str, Any]]]:
    return (row for rows in entries.values() for row in rows)


def _tau_tip(label: str, entry: dict[str, Any]) -> str:
    low, high = entry["acceptance_length_low"], entry["acceptance_length_high"]
    depth = f", depth {entry['best_depth']}" if entry["best_depth"] else ""
    return f"{label}{depth}: {low:.2f} to {high:.2f}"


def _slot_points(rates: list[float]) -> tuple[Point, ...]:
    """Points up to the first slot that was never accepted: no cycle judged the slots behind it."""
    last = rates.index(0.0) + 1 if 0.0 in rates else len(rates)
    return tuple(Point(slot, rate) for slot, rate in enumerate(rates[:last], start=1))


def _speedup_points(entry: dict[str, Any]) -> tuple[Point, ...]:
    return tuple(
        Point(int(depth), figures["speedup_ratio"], figures["low"], figures["high"])
        for depth, figures in entry["by_depth"].items()
        if figures["speedup_ratio"] is not None
    )


def _has_times(entry: dict[str, Any]) -> bool:
    """Whether the measured time is known by part: servers do not tell."""
    return entry["speedup_ratio"] is not None and str(entry["speedup_depth"]) in entry["by_depth"]


def _time_bar(label: str, entry: dict[str, Any]) -> Bar:
    total_ms = 1e3 / entry["tokens_per_s"]
    share = entry["by_depth"][str(entry["speedup_depth"])]["time_share"]
    parts = tuple(
        (f"part-{part}", total_ms * share[part], f"{label}, {part}: {total_ms * share[part]:.1f} ms")
        for part in TIME_PARTS
    )
    return Bar(label, parts, f"{total_ms:.1f}")


def _thin(curve: list[list[float]]) -> list[tuple[float, float]]:
    """Means over equal spans, so that a long curve stays a small drawing."""
    span = -(-len(curve) // MAX_CURVE_POINTS)
    spans = [curve[start : start + span] for start in range(0, len(curve), span)] if span else []
    return [
        (sum(step for step, _ in points) / len(points), sum(loss for _, loss in points) / len(points))
        for points in spans
    ]
