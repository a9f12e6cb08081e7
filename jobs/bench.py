"""What every bench leaves behind: one JSON file of figures, each with its interval, and where they hold."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eagleray.evaluation.bootstrap import Floats, bootstrap, ratio_of_sums
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.regime import Machine, describe_machine
from eagleray.files import write_json_atomically
from eagleray.monitoring.progress import ProgressMeter
from eagleray.settings import Settings

BENCH_FOLDER = Path("runs/bench")


class Figure(Settings):
    """One measured number."""

    value: float
    unit: str
    """`ratio`, `tokens`, `tokens/s`, `bytes`, `s`, ..."""
    low: float
    high: float
    """The 95 % interval; equal to `value` where a figure has no spread."""
    n: int
    """What was drawn: prompts, rounds, runs."""


class Bench(Settings):
    """Content of `runs/bench/<name>.json`."""

    commit: str
    """Of the code that measured; ends in `+` if the working tree differed from it."""
    date: str
    """UTC, ISO 8601."""
    machine: Machine
    regime: dict[str, Any]
    """Everything else that the figures depend on."""
    figures: dict[str, Figure]


class Parts:
    """Measures each part of a bench once, whatever number of starts it takes."""

    def __init__(self, folder: Path, meter: ProgressMeter):
        self._folder = folder
        self._meter = meter

    def has(self, name: str) -> bool:
        """Whether a part was measured already."""
        return self._path(name).exists()

    def kept(self, name: str) -> Any:
        """What was measured, as it came back from JSON."""
        return json.loads(self._path(name).read_text(encoding="utf-8"))

    def measured(self, name: str, measure: Callable[[], Any]) -> Any:
        """Measure a part, unless that was done; `measure` returns what JSON holds."""
        if not self.has(name):
            write_json_atomically(self._path(name), measure())
        self._meter.advance(1, name)
        return self.kept(name)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def write_bench(
    name: str, figures: Mapping[str, Figure], regime: Mapping[str, Any], folder: Path = BENCH_FOLDER
) -> Path:
    """Write `folder/<name>.json`, replacing an older one, and return its path."""
    bench = Bench(
        commit=_commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe_machine(),
        regime=dict(regime),
        figures=dict(figures),
    )
    path = folder / f"{name}.json"
    write_json_atomically(path, bench.model_dump(mode="json"))
    return path


def exact(value: float, unit: str, n: int = 1) -> Figure:
    """A number without spread, such as a count of bytes."""
    return Figure(value=value, unit=unit, low=value, high=value, n=n)


def ratio_figure(rows_PC: Sequence[Sequence[float]], unit: str) -> Figure:
    """Column 0 over column 1 of sums over prompts P, with its bootstrap interval over prompts."""
    return bootstrap_figure(rows_PC, ratio_of_sums, unit)


def bootstrap_figure(
    rows_PC: Sequence[Sequence[float]], figure: Callable[[Floats], Floats], unit: str
) -> Figure:
    """A function of column sums [..., C] -> [...], with its bootstrap interval over the rows P."""
    interval = bootstrap(rows_PC, figure, BootstrapConfig())
    return Figure(value=interval.value, unit=unit, low=interval.low, high=interval.high, n=len(rows_PC))


def _commit() -> str:
    def git(*arguments: str) -> str:
        result = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
        return result.stdout.strip()

    return (git("rev-parse", "HEAD") or "unknown") + ("+" if git("status", "--porcelain") else "")
