"""Bench of the watchdog on simulated jobs: what it finds, how soon, and how often it cries for nothing.

Detector settings are the defaults. Simulated properties come from the held-out ranges, which are wider than
those that the detector was written against, and from seeds that were used for nothing else.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

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
from jobs.bench import Figure, exact, write_bench

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
Z = 1.96

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    scale: Annotated[float, typer.Option(help="Share of the traces and hours; the figures want 1.")] = 1.0,
    seed: Annotated[int, typer.Option(help="First held-out seed.")] = HELD_OUT_SEED,
) -> None:
    """Simulate failing and healthy jobs, judge them, and write runs/bench/watchdog.json."""
    config = DetectorConfig()
    traces: list[FailingTrace] = []
    for ranks, count in FAILING:
        traces += run_failing(seed, HELD_OUT, ranks, max(8, round(count * scale)), config)
        typer.echo(f"{len(traces)} failing traces, newest with {ranks} ranks")
    scores: list[HealthyScore] = []
    for ranks, count in HEALTHY:
        scores.append(run_healthy(seed, HELD_OUT, ranks, max(1, round(count * scale)), HOURS_EACH, config))
        done = sum(score.hours for score in scores)
        typer.echo(
            f"{done:.0f} healthy hours, newest with {ranks} ranks; {scores[-1].ended} ended for nothing"
        )
    path = write_bench("watchdog", figures(traces, scores), regime(traces, scores, config, seed))
    typer.echo(f"bench {path}")


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
        "detection_median_s": quantile_figure(detected_s, 0.5),
        "detection_p95_s": quantile_figure(detected_s, 0.95),
        "end_median_s": quantile_figure(ended_s, 0.5),
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


def quantile_figure(values: Sequence[float], share: float) -> Figure:
    """A quantile with the order statistics that enclose it with 95 % probability."""
    n = len(values)
    half = Z * math.sqrt(share * (1 - share) / n)
    return Figure(
        value=quantile(values, share),
        unit="s",
        low=quantile(values, max(0.0, share - half)),
        high=quantile(values, min(1.0, share + half)),
        n=n,
    )


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
