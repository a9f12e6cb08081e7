"""What a person sees of a sweep while it runs: a live table on a terminal, a line per trial elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from eagleray.cluster.sweep import SweepListener, SweepProgress
from eagleray.tuning.report import note
from eagleray.tuning.result import Result
from eagleray.tuning.study import TrialView
from jobs.console import clock

SHOWN_ROWS = 30


@contextmanager
def sweep_listener(console: Console) -> Iterator[SweepListener]:
    """A listener that redraws a table on a terminal and prints lines elsewhere."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda progress: live.update(table(progress), refresh=True)


def table(progress: SweepProgress) -> Table:
    """Trials of all studies, the newest last, and how long it still takes."""
    shown = Table(title=headline(progress))
    for heading in ("study", "trial", "setting", "tau", "tokens/s", "95 %", "speedup", "state"):
        shown.add_column(heading, justify="left" if heading in ("study", "setting", "state") else "right")
    rows = [(name, view) for name, views in progress.studies.items() for view in views]
    for name, view in rows[-SHOWN_ROWS:]:
        shown.add_row(name, str(view.number), view.point.name, *_figures(view.outcome), view.state)
    return shown


def confirmed(results: Mapping[str, Result]) -> Table:
    """The last measurement of every workload."""
    shown = Table(title="Measured again at the end, interleaved, beside plain decoding")
    for heading in ("workload", "setting", "tau", "tokens/s", "95 %", "speedup", ""):
        shown.add_column(heading, justify="left" if heading in ("workload", "setting", "") else "right")
    for workload, result in results.items():
        for outcome in result.confirmation.outcomes if result.confirmation else ():
            figures = _figures(outcome.model_dump(mode="json"))
            shown.add_row(workload, outcome.point.name, *figures, note(result, outcome.point))
    return shown


def headline(progress: SweepProgress) -> str:
    """How far the sweep is."""
    ended = sum(view.state != "running" for views in progress.studies.values() for view in views)
    left = f", about {clock(progress.left_s)} left" if progress.left_s is not None else ""
    return f"{ended}/{progress.total} trials, {clock(progress.elapsed_s)} elapsed{left}"


def _figures(outcome: dict[str, Any] | None) -> tuple[str, ...]:
    figures: dict[str, Any] = (outcome or {}).get("figures", {})
    if not figures:
        return ("", "", "", "")
    rate = figures["tokens_per_s"]
    return (
        f"{figures['tau']['value']:.2f}",
        f"{rate['value']:.1f}",
        f"{rate['low']:.1f}..{rate['high']:.1f}",
        f"{figures['speedup']['value']:.2f}",
    )


class _Lines:
    """Prints each trial once, when it has ended."""

    def __init__(self, console: Console):
        self._console = console
        self._told: set[tuple[str, int]] = set()

    def __call__(self, progress: SweepProgress) -> None:
        for name, views in progress.studies.items():
            for view in views:
                if view.state != "running" and (name, view.number) not in self._told:
                    self._told.add((name, view.number))
                    self._console.print(f"[{name}] {self._line(view)}  ({headline(progress)})", markup=False)

    def _line(self, view: TrialView) -> str:
        tau, rate, _, speedup = _figures(view.outcome)
        found = f"tau {tau}  {rate} tokens/s  {speedup}x" if tau else view.reason or ""
        return f"trial {view.number} {view.point.name}: {view.state}  {found}"
