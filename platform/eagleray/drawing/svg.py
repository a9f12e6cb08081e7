"""A drawing surface for inline SVG.

Colours come from the page's style sheet, so a plot follows light, dark and print.
Coordinates are in pixels of the view box, y downwards.
"""

import math
from collections.abc import Sequence

from markupsafe import Markup

MARKERS = ("circle", "square", "diamond", "triangle")


class Drawing:
    """Collects shapes and renders them as one labelled image."""

    def __init__(self, width: float, height: float):
        self.width = width
        self.height = height
        self._shapes: list[Markup] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """Draw a straight line of a style class."""
        self._add('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>', style, x1, y1, x2, y2)

    def path(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Draw a polygonal line."""
        coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._add('<polyline class="{}" points="{}"/>', style, coordinates)

    def bar(self, x: float, y: float, width: float, height: float, style: str, tip: str) -> None:
        """Draw a filled rectangle that says `tip` when pointed at."""
        self._add(
            '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2">'
            "<title>{}</title></rect>",
            style,
            x,
            y,
            max(width, 0.0),
            height,
            tip,
        )

    def cell(self, x: float, y: float, width: float, height: float, strength: float, tip: str) -> None:
        """Draw a field of a heat map; `strength` is 0 for the page's colour and 1 for the full colour."""
        self._add(
            '<rect class="heat" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2" '
            'fill-opacity="{:.2f}"><title>{}</title></rect>',
            x,
            y,
            width,
            height,
            strength,
            tip,
        )

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        """Write text; `anchor` is start, middle or end."""
        self._add(
            '<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>', style, x, y, anchor, text
        )

    def marker(self, x: float, y: float, series: int, tip: str) -> None:
        """Draw the mark of a series: shape and colour both tell it apart."""
        self._shapes.append(marker_shape(x, y, series, tip))

    def render(self, title: str, description: str) -> Markup:
        """Return the image; `description` is what a screen reader says."""
        opening = Markup(
            '<svg class="plot" role="img" viewBox="0 0 {:.0f} {:.0f}" aria-label="{}: {}" font-size="12">'
        ).format(self.width, self.height, title, description)
        return opening + Markup("").join(self._shapes) + Markup("</svg>")

    def _add(self, template: str, *values: object) -> None:
        self._shapes.append(Markup(template).format(*values))


def marker_shape(x: float, y: float, series: int, tip: str) -> Markup:
    """One mark as SVG, also used in legends."""
    style = Markup('class="mark series-{}"').format(series)
    title = Markup("<title>{}</title>").format(tip) if tip else Markup("")
    kind = MARKERS[series % len(MARKERS)]
    if kind == "circle":
        return Markup('<circle {} cx="{:.1f}" cy="{:.1f}" r="4">{}</circle>').format(style, x, y, title)
    outlines = {
        "square": ((-3.7, -3.7), (3.7, -3.7), (3.7, 3.7), (-3.7, 3.7)),
        "diamond": ((0, -5.2), (5.2, 0), (0, 5.2), (-5.2, 0)),
        "triangle": ((0, -5), (4.8, 3.6), (-4.8, 3.6)),
    }
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in outlines[kind])
    return Markup('<polygon {} points="{}">{}</polygon>').format(style, points, title)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover low..high with about `count` steps; the first is <= low, the last >= high."""
    raw = max(high - low, 1e-9) / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10) if magnitude * factor >= raw * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [number * step for number in range(first, last + 1)]
