"""From a study's result to its figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from markupsafe import Markup

from eagleray.drawing.charts import Bar, Line, Point, bar_panel, heat_panel, line_panel, point_panel
from eagleray.drawing.svg import nice_ticks
from eagleray.tuning.config import PLAIN, Scalar
from eagleray.tuning.outcome import Outcome
from eagleray.tuning.result import Result

SERIES = 6
"""Series colours in the style sheet; a seventh drafter takes the first colour again."""


@dataclass(frozen=True)
class Panel:
    """One small chart with its heading."""

    title: str
    image: Markup


def labels(results: Mapping[str, Result]) -> list[str]:
    """Drafters of all studies, in the order they were tried: their places give them their colours."""
    return list(dict.fromkeys(trial.point.drafter for result in results.values() for trial in result.trials))


def history_panels(results: Mapping[str, Result]) -> list[Panel]:
    """First objective by trial, and the best so far."""

    def panel(workload: str, result: Result) -> Markup:
        name = result.objectives[0]
        ended = [(t.number, t.outcome) for t in result.trials if t.outcome and t.state == "complete"]
        found = [Point(number, one.figures[name].value) for number, one in ended]
        best, so_far = [], float("-inf")
        for point in found:
            so_far = max(so_far, point.y)
            best.append(Point(point.x, so_far))
        lines = [Line("trial", 5, tuple(found)), Line("best so far", 0, tuple(best))]
        x_ticks = nice_ticks(0.0, max(found[-1].x, 1.0))
        return line_panel(workload, lines, x_ticks, _ticks(found), "trial")

    return _panels(results, panel)


def slice_panels(results: Mapping[str, Result]) -> list[Panel]:
    """First objective by depth, a line per drafter, each depth at its best block."""
    names = labels(results)

    def panel(workload: str, result: Result) -> Markup:
        lines = [
            Line(label, names.index(label) % SERIES, points)
            for label in names
            if (points := _by_depth(result, label))
        ]
        every = [point for line in lines for point in line.points]
        deepest = max(2, *(int(point.x) for point in every))
        plain = next((p.y for line in lines if line.label == PLAIN for p in line.points), None)
        x_ticks = [float(depth) for depth in range(deepest + 1)]
        return line_panel(workload, lines, x_ticks, _ticks(every), "draft depth (0 is plain)", plain)

    return _panels(results, panel)


def heat_panels(results: Mapping[str, Result]) -> list[Panel]:
    """First objective over depth and block size, of every drafter that has blocks."""
    panels = []
    for workload, result in results.items():
        name = result.objectives[0]
        found = [outcome for outcome in result.outcomes if "block_size" in outcome.point.values]
        for label in dict.fromkeys(outcome.point.drafter for outcome in found):
            chosen = [outcome for outcome in found if outcome.point.drafter == label]
            blocks, depths = (sorted({_integer(o, key) for o in chosen}) for key in ("block_size", "depth"))
            cells = {
                (blocks.index(_integer(o, "block_size")), depths.index(_integer(o, "depth"))): (
                    o.figures[name].value,
                    f"block {_integer(o, 'block_size')}, depth {_integer(o, 'depth')}: {_spoken(o, name)}",
                )
                for o in chosen
            }
            title = f"{label} on {workload}"
            image = heat_panel(
                title, [str(b) for b in blocks], [str(d) for d in depths], cells, "draft depth", "block"
            )
            panels.append(Panel(title, image))
    return panels


def parameter_panels(result: Result) -> list[Panel]:
    """First objective by each parameter; values without an order are numbered as they were tried."""
    name = result.objectives[0]
    drafters = labels({"": result})
    found = [outcome for outcome in result.outcomes if outcome.feasible]
    panels = []
    for parameter in dict.fromkeys(key for outcome in found for key in outcome.point.values):
        having = [outcome for outcome in found if parameter in outcome.point.values]
        values = [outcome.point.values[parameter] for outcome in having]
        order = list(dict.fromkeys(values))
        numbers = [float(v) if _is_number(v) else float(order.index(v)) for v in values]
        lines = [
            Line(o.point.name, drafters.index(o.point.drafter) % SERIES, (Point(x, o.figures[name].value),))
            for o, x in zip(having, numbers, strict=True)
        ]
        points = [point for line in lines for point in line.points]
        x_ticks = nice_ticks(min(numbers), max(numbers), 4)
        panels.append(
            Panel(parameter, point_panel(parameter, lines, x_ticks, _ticks(points), parameter, name))
        )
    return panels


def rung_panels(result: Result) -> list[Panel]:
    """Replay tau of every trial, rung by rung: where the pruner ended it."""
    drafters = labels({"": result})
    lines = [
        Line(
            f"trial {trial.number}, {trial.point.name}",
            drafters.index(trial.point.drafter) % SERIES,
            tuple(Point(resource, tau) for resource, tau in sorted(trial.rungs.items())),
        )
        for trial in result.trials
        if trial.rungs
    ]
    if not lines:
        return []
    points = [point for line in lines for point in line.points]
    x_ticks = sorted({point.x for point in points} | {0.0})
    image = line_panel(
        "Replay tau by rung", lines, x_ticks, _ticks(points), "share of the budget, in first rungs"
    )
    return [Panel("replay tau", image)]


def importance_panels(results: Mapping[str, Result]) -> list[Panel]:
    """Share of each parameter in being among the best."""

    def panel(workload: str, result: Result) -> Markup:
        bars = [
            Bar(name, (("part-verify", share, f"{name}: {share:.0%}"),), f"{share:.2f}")
            for name, share in result.importances.items()
        ]
        return bar_panel(
            workload, bars, nice_ticks(0.0, max(max(result.importances.values()), 0.1), 4), "share"
        )

    return _panels({name: result for name, result in results.items() if result.importances}, panel)


def front_panels(results: Mapping[str, Result]) -> list[Panel]:
    """The first two objectives against each other, the Pareto front in a colour of its own."""

    def panel(workload: str, result: Result) -> Markup:
        across, up = result.objectives[:2]
        points = {o.point: Point(o.figures[across].value, o.figures[up].value) for o in result.outcomes}
        lines = [
            Line(point.name, 0 if point in result.front else 5, (place,)) for point, place in points.items()
        ]
        places = list(points.values())
        x_ticks = nice_ticks(min(p.x for p in places), max(p.x for p in places), 4)
        return point_panel(workload, lines, x_ticks, _ticks(places), across, up)

    return _panels({name: result for name, result in results.items() if len(result.objectives) > 1}, panel)


def _panels(results: Mapping[str, Result], draw: Callable[[str, Result], Markup]) -> list[Panel]:
    return [
        Panel(workload, draw(workload, result))
        for workload, result in results.items()
        if any(outcome.feasible for outcome in result.outcomes)
    ]


def _by_depth(result: Result, label: str) -> tuple[Point, ...]:
    name = result.objectives[0]
    best: dict[int, Outcome] = {}
    for outcome in result.outcomes:
        if outcome.point.drafter == label and outcome.feasible:
            depth = 0 if label == PLAIN else _integer(outcome, "depth")
            if depth not in best or outcome.figures[name].value > best[depth].figures[name].value:
                best[depth] = outcome
    return tuple(
        Point(depth, (figure := outcome.figures[name]).value, figure.low, figure.high)
        for depth, outcome in sorted(best.items())
    )


def _is_number(value: Scalar) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(outcome: Outcome, key: str) -> int:
    value = outcome.point.values[key]
    assert isinstance(value, int)  # serving parameters are integers
    return value


def _spoken(outcome: Outcome, name: str) -> str:
    figure = outcome.figures[name]
    return f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"


def _ticks(points: Sequence[Point]) -> list[float]:
    lows = [point.y if point.low is None else point.low for point in points]
    highs = [point.y if point.high is None else point.high for point in points]
    return nice_ticks(min(lows), max(highs))
