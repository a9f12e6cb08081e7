"""Charts drawn small enough to be read on a phone: bars, stacked bars, lines, points and heat maps.

Panels of one figure share a scale, which the caller gives, so that they can be compared by eye.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from eagleray.drawing.svg import Drawing

WIDTH = 340.0
LABEL_WIDTH = 104.0
ROW_HEIGHT = 30.0
PLOT_HEIGHT = 210.0


@dataclass(frozen=True)
class Bar:
    """One labelled bar: parts from left to right, and what is written at its end."""

    label: str
    parts: tuple[tuple[str, float, str], ...]
    """Style class, length in the scale's units, and what the part says when pointed at."""
    value: str
    interval: tuple[float, float] | None = None
    """Both ends, if the length has one."""


@dataclass(frozen=True)
class Point:
    """A value, and its interval if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """The points of one series."""

    label: str
    series: int
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Scale:
    """A linear axis: the values at its ends, and their pixels."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        """Pixel of a value."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)


def bar_panel(
    title: str, bars: Sequence[Bar], ticks: Sequence[float], unit: str, reference: float | None = None
) -> Markup:
    """Draw horizontal bars from 0, with a line at the reference."""
    height = ROW_HEIGHT * len(bars) + 40
    drawing = Drawing(WIDTH, height)
    scale = Scale(ticks[0], ticks[-1], LABEL_WIDTH, WIDTH - 46)
    floor = ROW_HEIGHT * len(bars) + 6
    for tick in ticks:
        drawing.line(scale.at(tick), 4, scale.at(tick), floor, "grid")
        drawing.text(scale.at(tick), floor + 14, f"{tick:g}", "tick", "middle")
    drawing.text((scale.start + scale.stop) / 2, height - 4, unit, "tick", "middle")
    for row, bar in enumerate(bars):
        top = 8 + row * ROW_HEIGHT
        drawing.text(LABEL_WIDTH - 8, top + 14, bar.label, "label", "end")
        reached = 0.0
        for style, length, tip in bar.parts:
            left = scale.at(reached)
            drawing.bar(left, top, scale.at(reached + length) - left, ROW_HEIGHT - 10, style, tip)
            reached += length
        low, high = map(scale.at, bar.interval or (reached, reached))
        drawing.line(low, top + 10, high, top + 10, "whisker")
        drawing.text(max(scale.at(reached), high) + 5, top + 14, bar.value, "value")
    if reference is not None:
        drawing.line(scale.at(reference), 0, scale.at(reference), floor, "reference")
    spoken = "; ".join(f"{bar.label} {bar.value}" for bar in bars)
    return drawing.render(title, f"{spoken} ({unit})")


def line_panel(
    title: str,
    lines: Sequence[Line],
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_label: str,
    reference: float | None = None,
    marks: bool = True,
) -> Markup:
    """Draw lines over a shared grid; with `marks`, each point has its mark and its interval."""
    drawing = Drawing(WIDTH, PLOT_HEIGHT)
    pad = 14.0 if marks else 0.0
    rightmost = max([x_ticks[-1], *(point.x for line in lines for point in line.points)])
    x_scale = Scale(x_ticks[0], rightmost, 40 + pad, WIDTH - 12 - pad)
    y_scale = Scale(y_ticks[0], y_ticks[-1], PLOT_HEIGHT - 40, 12)
    _draw_grid(drawing, x_scale, y_scale, x_ticks, y_ticks, x_label)
    if reference is not None:
        drawing.line(40, y_scale.at(reference), WIDTH - 12, y_scale.at(reference), "reference")
    for rank, line in enumerate(lines):
        # Intervals at one depth would hide each other, so each series stands a little aside.
        aside = (rank - (len(lines) - 1) / 2) * 5.0 if marks else 0.0
        _draw_line(drawing, line, x_scale, y_scale, aside, marks)
    return drawing.render(title, "; ".join(_spoken(line) for line in lines))


def point_panel(
    title: str,
    lines: Sequence[Line],
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_label: str,
    y_label: str,
    diagonal: bool = False,
) -> Markup:
    """Draw points alone over a shared grid; each says its series and both values.

    Args:
        diagonal: Also draw where both axes, which then share their ticks, are equal.
    """
    drawing = Drawing(WIDTH, PLOT_HEIGHT)
    x_scale = Scale(x_ticks[0], x_ticks[-1], 54, WIDTH - 26)
    y_scale = Scale(y_ticks[0], y_ticks[-1], PLOT_HEIGHT - 40, 24)
    _draw_grid(drawing, x_scale, y_scale, x_ticks, y_ticks, x_label)
    drawing.text(40, 12, y_label, "tick")
    if diagonal:
        low, high = x_ticks[0], x_ticks[-1]
        drawing.line(x_scale.at(low), y_scale.at(low), x_scale.at(high), y_scale.at(high), "reference")
    for line in lines:
        for point in line.points:
            tip = f"{line.label}: {point.x:.2f}, {point.y:.2f}"
            drawing.marker(x_scale.at(point.x), y_scale.at(point.y), line.series, tip)
    return drawing.render(title, "; ".join(_spoken(line) for line in lines))


def heat_panel(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[int, int], tuple[float, str]],
    x_label: str,
    y_label: str,
) -> Markup:
    """Draw a field per row and column: the stronger, the higher. The highest is bold.

    Args:
        cells: Row and column -> value and what the field says when pointed at.
    """
    left, top = 54.0, 20.0
    width = (WIDTH - left - 6) / len(columns)
    drawing = Drawing(WIDTH, top + ROW_HEIGHT * len(rows) + 36)
    values = [value for value, _ in cells.values()]
    low, high = min(values, default=0.0), max(values, default=1.0)
    drawing.text(4, 12, y_label, "tick")
    for (row, column), (value, tip) in cells.items():
        strength = 0.08 + 0.62 * (value - low) / (high - low) if high > low else 0.4
        x, y = left + column * width, top + row * ROW_HEIGHT
        style = "value" if value == high else "label"
        drawing.cell(x + 1, y + 1, width - 2, ROW_HEIGHT - 2, strength, tip)
        drawing.text(x + width / 2, y + 19, f"{value:.3g}", style, "middle")
    for row, name in enumerate(rows):
        drawing.text(left - 8, top + row * ROW_HEIGHT + 19, name, "tick", "end")
    floor = top + ROW_HEIGHT * len(rows)
    for column, name in enumerate(columns):
        drawing.text(left + (column + 0.5) * width, floor + 14, name, "tick", "middle")
    drawing.text(left + len(columns) * width / 2, floor + 30, x_label, "tick", "middle")
    return drawing.render(title, "; ".join(tip for _, tip in cells.values()))


def _draw_line(
    drawing: Drawing, line: Line, x_scale: Scale, y_scale: Scale, aside: float, marks: bool
) -> None:
    places = [(x_scale.at(point.x) + aside, y_scale.at(point.y)) for point in line.points]
    drawing.path(places, f"line series-{line.series}")
    if not marks:
        return
    for (x, y), point in zip(places, line.points, strict=True):
        tip = f"{line.label} at {point.x:g}: {point.y:.2f}"
        if point.low is not None and point.high is not None:
            drawing.line(
                x, y_scale.at(point.low), x, y_scale.at(point.high), f"interval series-{line.series}"
            )
            tip += f" ({point.low:.2f} to {point.high:.2f})"
        drawing.marker(x, y, line.series, tip)


def _spoken(line: Line) -> str:
    if len(line.points) > 12:
        first, last = line.points[0], line.points[-1]
        return f"{line.label} from {first.y:.2f} at {first.x:g} to {last.y:.2f} at {last.x:g}"
    return f"{line.label} " + ", ".join(f"{point.y:.2f} at {point.x:g}" for point in line.points)


def _draw_grid(
    drawing: Drawing,
    x_scale: Scale,
    y_scale: Scale,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_label: str,
) -> None:
    for tick in y_ticks:
        drawing.line(40, y_scale.at(tick), WIDTH - 12, y_scale.at(tick), "grid")
        drawing.text(34, y_scale.at(tick) + 4, f"{tick:.3g}", "tick", "end")
    for tick in x_ticks:
        drawing.text(x_scale.at(tick), PLOT_HEIGHT - 23, f"{tick:g}", "tick", "middle")
    drawing.text((40 + WIDTH - 12) / 2, PLOT_HEIGHT - 6, x_label, "tick", "middle")
