"""Every metric that EagleRay exports, declared once: sinks take these, dashboards are made from them.

Names are `eagleray_<room>_<thing>_<unit>`; Prometheus sees them with Ray's prefix, `ray_`.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One exported number."""

    name: str
    kind: Literal["gauge", "counter"]
    unit: Literal["s", "ratio", "index", "count"]
    description: str
    tags: tuple[str, ...]
    """Kept few: every combination of values is a time series of its own."""
    labels: tuple[str, ...] = ()
    """What the values 0, 1, 2, ... of an `index` mean."""


PHASE = Metric(
    name="eagleray_watchdog_phase_index",
    kind="gauge",
    unit="index",
    description="What the rank is doing.",
    tags=("run", "rank"),
    labels=(
        "init",
        "compile",
        "data",
        "target",
        "forward",
        "backward",
        "collective",
        "optimizer",
        "checkpoint",
        "evaluate",
    ),
)
SILENCE = Metric(
    name="eagleray_watchdog_silence_s",
    kind="gauge",
    unit="s",
    description="Seconds since the rank's last sign of life.",
    tags=("run", "rank"),
)
STEP_AGE = Metric(
    name="eagleray_watchdog_step_age_s",
    kind="gauge",
    unit="s",
    description="Seconds since the rank's last optimiser step.",
    tags=("run", "rank"),
)
POWER_RATIO = Metric(
    name="eagleray_watchdog_power_ratio",
    kind="gauge",
    unit="ratio",
    description="Power over the rank's own mean while the job moved.",
    tags=("run", "rank"),
)
MEMORY_GROWTH = Metric(
    name="eagleray_watchdog_memory_growth_ratio",
    kind="gauge",
    unit="ratio",
    description="Memory over the rank's own mean, minus 1, beyond the growth of the median peer.",
    tags=("run", "rank"),
)
VERDICT = Metric(
    name="eagleray_watchdog_verdict_index",
    kind="gauge",
    unit="index",
    description="What the detector says of the run.",
    tags=("run",),
    labels=(
        "healthy",
        "straggler",
        "telemetry_lost",
        "data_starved",
        "collective_hang",
        "oom_hang",
        "dead_rank",
    ),
)
INCIDENTS = Metric(
    name="eagleray_watchdog_incidents_total",
    kind="counter",
    unit="count",
    description="Incidents written, warnings included.",
    tags=("run", "kind"),
)

WATCHDOG = (VERDICT, PHASE, SILENCE, STEP_AGE, POWER_RATIO, MEMORY_GROWTH, INCIDENTS)

SWEEP_TRIALS = Metric(
    name="eagleray_sweep_trials_total",
    kind="counter",
    unit="count",
    description="Trials of a sweep that ended, by how they ended.",
    tags=("study", "state"),
)
SWEEP_SPEEDUP = Metric(
    name="eagleray_sweep_best_speedup_ratio",
    kind="gauge",
    unit="ratio",
    description="Speedup over plain decoding of the best trial so far.",
    tags=("study",),
)

SWEEP = (SWEEP_TRIALS, SWEEP_SPEEDUP)
CATALOGUE = {metric.name: metric for metric in (*WATCHDOG, *SWEEP)}
