"""Bench of the watchdog: simulated jobs by the thousand, five real faults, and what being watched costs.

Detector settings are the defaults for simulated jobs and those of the demo recipe for real ones. Simulated
properties come from the held-out ranges, which are wider than those that the detector was written against,
and from seeds that were used for nothing else. Finished parts are kept in runs/bench/watchdog/, so that a
bench that was stopped goes on; they count for the watchdog's code as it was and for no other.
"""

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from eagleray.files import write_json_atomically
from eagleray.settings import fingerprint
from eagleray.watchdog.config import DetectorConfig
from eagleray.watchdog.simulator.ranges import HELD_OUT
from eagleray.watchdog.simulator.scoring import (
    AFTER_FAULT_S,
    FailingTrace,
    HealthyScore,
    quantile,
    run_failing,
    run_healthy,
)
from jobs.bench import BENCH_FOLDER, Figure, exact, write_bench
from jobs.real_faults import (
    CULPRIT,
    RIGHT_VERDICT,
    ROOT,
    STEP,
    distil,
    train_with_faults,
    undisturbed_tokens,
)
from jobs.watchdog_overhead import watched_and_unwatched_s

HELD_OUT_SEED = 3_000_000
"""Seeds below were looked at: those from 1,000,000 and from 2,000,000 each ended healthy runs and showed a
defect, so their figures no longer count."""
FAILING = ((2, 560), (4, 480), (8, 480), (16, 320), (64, 240), (256, 64), (512, 24))
"""Ranks of a job, and how many such jobs fail."""
HEALTHY = ((2, 700), (4, 500), (8, 500), (16, 200), (64, 90), (256, 16), (512, 4))
"""Ranks of a job, and how many such jobs run healthily."""
HOURS_EACH = 5.0
STATIONARY = ("straggler", "data_slow")
"""Faults that slow a run and never end it."""
OVERHEAD_PAIRS = 40
WATCHDOG = ROOT / "platform" / "eagleray" / "watchdog"
JUDGING = (
    "config.py",
    "detector.py",
    "frame.py",
    "learning.py",
    "rules",
    "simulator",
    "state.py",
    "view.py",
)
"""What simulated jobs run through."""
ACTING = ("attempts.py", "rank_watch.py", "watch.py")
"""What carries verdicts out."""
Z = 1.96

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Parts:
    """Results of the bench's parts, kept while what they rest on stays the same."""

    folder: Path
    code: str
    """Fingerprint of what is measured."""

    def get(self, name: str, settings: Any, measure: Callable[[], Any]) -> Any:
        """The kept result, or a new one, which must be plain data."""
        path = self.folder / f"{name}.json"
        named = fingerprint([self.code, settings])
        if path.exists() and (kept := json.loads(path.read_text(encoding="utf-8")))["basis"] == named:
            return kept["result"]
        result = measure()
        write_json_atomically(path, {"basis": named, "result": result})
        return result


@app.command()
def main(
    scale: Annotated[float, typer.Option(help="Share of the traces and hours; the figures want 1.")] = 1.0,
    seed: Annotated[int, typer.Option(help="First held-out seed.")] = HELD_OUT_SEED,
) -> None:
    """Judge simulated and real jobs, and write runs/bench/watchdog.json."""
    folder = (BENCH_FOLDER / "watchdog").resolve()
    config = DetectorConfig()
    simulated = Parts(folder, _code(*(WATCHDOG / name for name in JUDGING)))
    traces = _failing(simulated, seed, scale, config)
    scores = _healthy(simulated, seed, scale, config)
    machine = Parts(folder, _code(WATCHDOG, *(WATCHDOG.parent / "cluster" / name for name in ACTING)))
    distilled = folder / "distilled"
    machine.get("distil", None, lambda: distil(distilled))
    real = {
        fault: machine.get(f"real-{fault}", STEP, partial(_real, distilled, fault)) for fault in RIGHT_VERDICT
    }
    pairs_s = machine.get(
        "overhead",
        OVERHEAD_PAIRS,
        lambda: watched_and_unwatched_s(distilled, folder / "scratch", OVERHEAD_PAIRS),
    )
    found = figures(traces, scores) | real_figures(real) | overhead_figures(pairs_s)
    for name, figure in found.items():
        typer.echo(f"{name:<30} {figure.value:.4f} {figure.unit}  {figure.low:.4f} to {figure.high:.4f}")
    path = write_bench("watchdog", found, regime(traces, scores, config, seed) | {"real_faults": real})
    typer.echo(f"bench {path}")


def _failing(parts: Parts, seed: int, scale: float, config: DetectorConfig) -> list[FailingTrace]:
    traces: list[FailingTrace] = []
    for ranks, full in FAILING:
        count = max(8, round(full * scale))

        def measure(ranks: int = ranks, count: int = count) -> list[dict[str, Any]]:
            return [asdict(trace) for trace in run_failing(seed, HELD_OUT, ranks, count, config)]

        kept = parts.get(f"failing-{ranks}", [seed, count], measure)
        traces += [FailingTrace(**trace) for trace in kept]
        typer.echo(f"{len(traces)} failing traces, newest with {ranks} ranks")
    return traces


def _healthy(parts: Parts, seed: int, scale: float, config: DetectorConfig) -> list[HealthyScore]:
    scores: list[HealthyScore] = []
    for ranks, full in HEALTHY:
        count = max(1, round(full * scale))

        def measure(ranks: int = ranks, count: int = count) -> dict[str, Any]:
            # Field by field: `asdict` would count the entries of a Counter.
            return vars(run_healthy(seed, HELD_OUT, ranks, count, HOURS_EACH, config))

        kept = parts.get(f"healthy-{ranks}", [seed, count, HOURS_EACH], measure)
        scores.append(HealthyScore(**kept | {"warnings": Counter(kept["warnings"])}))
        hours = sum(score.hours for score in scores)
        typer.echo(
            f"{hours:.0f} healthy hours, newest with {ranks} ranks; {scores[-1].ended} ended for nothing"
        )
    return scores


def _real(distilled: Path, fault: str) -> dict[str, Any]:
    typer.echo(f"a real training in which rank {CULPRIT} suffers: {fault}")
    after = train_with_faults(distilled, distilled.with_name(f"real-{fault}"), [(fault, STEP)])
    return {
        "told": [
            {key: verdict[key] for key in ("kind", "culprit", "ends_attempt", "after_s")}
            for verdict in after.incidents
        ],
        "nothing_lost": after.supervised_tokens == undisturbed_tokens(distilled),
        "trained_length": after.trained_length,
    }


def real_figures(real: dict[str, dict[str, Any]]) -> dict[str, Figure]:
    """Right from the first word on, and how soon an attempt was ended."""
    right, ended_s = [], []
    for fault, outcome in real.items():
        told = {(verdict["kind"], verdict["culprit"]) for verdict in outcome["told"]}
        ending_s = [verdict["after_s"] for verdict in outcome["told"] if verdict["ends_attempt"]]
        right.append(told == {(RIGHT_VERDICT[fault], CULPRIT)} and outcome["nothing_lost"])
        ended_s.append(ending_s[0] if len(ending_s) == 1 else math.inf)
    return {
        "real_fault_max_detection_s": exact(max(ended_s), "s", len(ended_s)),
        "real_fault_right_ratio": proportion(right),
    }


def overhead_figures(pairs_s: dict[str, list[list[float]]]) -> dict[str, Figure]:
    """What a watched step takes beyond an unwatched one, as a share of the latter; medians over pairs."""
    shares = {
        kind: [watched_s / unwatched_s - 1 for watched_s, unwatched_s in pairs]
        for kind, pairs in pairs_s.items()
    }
    return {
        "overhead_ratio": quantile_figure(shares["passed"], 0.5, "ratio"),
        "overhead_processor_ratio": quantile_figure(shares["processor"], 0.5, "ratio"),
    }


def figures(traces: Sequence[FailingTrace], scores: Sequence[HealthyScore]) -> dict[str, Figure]:
    """The figures of the bench. What did not happen counts as if it had at the end of the trace."""
    detected_s = [_or_end(trace.detected_after_s) for trace in traces]
    ended_s = [_or_end(trace.ended_after_s) for trace in traces if trace.fault not in STATIONARY]
    hours = sum(score.hours for score in scores)
    false_alarms = sum(score.ended for score in scores) + sum(trace.ended_before for trace in traces)
    warnings = sum(count for score in scores for count in score.warnings.values())
    return {
        "recall_ratio": proportion(trace.detected_after_s is not None for trace in traces),
        "culprit_ratio": proportion(trace.right_culprit for trace in traces),
        "detection_median_s": quantile_figure(detected_s, 0.5, "s"),
        "detection_p95_s": quantile_figure(detected_s, 0.95, "s"),
        "end_median_s": quantile_figure(ended_s, 0.5, "s"),
        "false_alarms": exact(false_alarms, "verdicts", round(hours)),
        "healthy_hours": exact(round(hours, 1), "h"),
        "healthy_warnings_per_hour": exact(round(warnings / hours, 4), "1/h", round(hours)),
    }


def regime(
    traces: Sequence[FailingTrace], scores: Sequence[HealthyScore], config: DetectorConfig, seed: int
) -> dict[str, Any]:
    """What the figures depend on, and how they come out for each sort of trace."""
    by_fault: dict[str, list[FailingTrace]] = defaultdict(list)
    for trace in traces:
        by_fault[trace.fault].append(trace)
        if trace.early:
            by_fault["in the first steps"].append(trace)
        if trace.step_s >= 10:
            by_fault["steps of 10 s and more"].append(trace)
    return {
        "detector": config.model_dump(mode="json"),
        "ranges": "HELD_OUT",
        "seed": seed,
        "failing_jobs": FAILING,
        "healthy_jobs": HEALTHY,
        "warnings_in_healthy_hours": dict(sum((score.warnings for score in scores), Counter())),
        "ended_for": [kind for score in scores for kind in score.ended_for],
        "by_fault": {name: _summary(found) for name, found in sorted(by_fault.items())},
    }


def proportion(outcomes: Iterable[bool]) -> Figure:
    """A share with its Wilson interval, which stays inside 0..1 also at the ends."""
    drawn = list(outcomes)
    n, share = len(drawn), sum(drawn) / len(drawn)
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return Figure(value=share, unit="ratio", low=max(0.0, middle - half), high=min(1.0, middle + half), n=n)


def quantile_figure(values: Sequence[float], share: float, unit: str) -> Figure:
    """A quantile with the order statistics that enclose it with 95 % probability."""
    n = len(values)
    half = Z * math.sqrt(share * (1 - share) / n)
    return Figure(
        value=quantile(values, share),
        unit=unit,
        low=quantile(values, max(0.0, share - half)),
        high=quantile(values, min(1.0, share + half)),
        n=n,
    )


def _code(*paths: Path) -> str:
    """Fingerprint of files and of those in folders."""
    files = sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py")))
    return fingerprint([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])


def _or_end(after_s: float | None) -> float:
    return AFTER_FAULT_S if after_s is None else after_s


def _summary(traces: Sequence[FailingTrace]) -> dict[str, Any]:
    detected_s = [t.detected_after_s for t in traces if t.detected_after_s is not None]
    ended_s = [t.ended_after_s for t in traces if t.ended_after_s is not None]
    return {
        "traces": len(traces),
        "recall": len(detected_s) / len(traces),
        "culprit": sum(trace.right_culprit for trace in traces) / len(traces),
        "detection_median_s": quantile(detected_s, 0.5) if detected_s else None,
        "detection_p95_s": quantile(detected_s, 0.95) if detected_s else None,
        "ended": len(ended_s) / len(traces),
        "end_median_s": quantile(ended_s, 0.5) if ended_s else None,
    }


if __name__ == "__main__":
    app()
