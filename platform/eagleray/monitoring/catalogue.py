"""Every metric that EagleRay exports, declared once: sinks take these, dashboards are made from them.

Names are `eagleray_<room>_<thing>_<unit>`; Prometheus sees them with Ray's prefix, `ray_`.
"""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["s", "ratio", "index", "count", "requests", "tokens", "nats"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One exported number."""

    name: str
    kind: Literal["gauge", "counter"]
    unit: Unit
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


def _trained(thing: str, unit: Unit, description: str, *tags: str) -> Metric:
    return Metric(
        name=f"eagleray_training_{thing}_{unit}",
        kind="gauge",
        unit=unit,
        description=description,
        tags=("run", *tags),
    )


LOSS = _trained("loss", "nats", "Loss of the latest step, per unit of weight.")
TAU_ESTIMATE = _trained(
    "tau_estimate",
    "tokens",
    "Acceptance length that the slots' accuracies in training would give; no measured tau.",
)
REPLAY_TAU = _trained(
    "replay_tau", "tokens", "Acceptance length on samples kept out of training, at its latest trial."
)
SLOT_ACCURACY = _trained(
    "slot_accuracy", "ratio", "Share of supervised predictions of a draft slot that are right.", "slot"
)
RATE = _trained("learning_rate", "ratio", "Learning rate over its peak.")
PHASE_TIME = _trained("phase", "s", "Seconds of the latest step on the first rank, by what it did.", "phase")
MIRROR_MISSED = Metric(
    name="eagleray_training_mirror_missed_total",
    kind="counter",
    unit="count",
    description="Uploads of checkpoints to the mirror that were given up.",
    tags=("run",),
)
TRAINED_TOKENS = Metric(
    name="eagleray_training_supervised_tokens_total",
    kind="counter",
    unit="count",
    description="Supervised tokens trained on.",
    tags=("run",),
)

TRAINING = (LOSS, TAU_ESTIMATE, REPLAY_TAU, SLOT_ACCURACY, RATE, PHASE_TIME, MIRROR_MISSED, TRAINED_TOKENS)

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

REPLICA = ("application", "replica")
HEALTH = Metric(
    name="eagleray_serving_health_index",
    kind="gauge",
    unit="index",
    description="How the replica fares, judged by the progress of its answers.",
    tags=REPLICA,
    labels=("healthy", "degraded", "drifted", "stalled", "stopped"),
)
UNFINISHED = Metric(
    name="eagleray_serving_unfinished_requests",
    kind="gauge",
    unit="requests",
    description="Answers that wait or grow.",
    tags=REPLICA,
)
ACCEPTANCE_LENGTH = Metric(
    name="eagleray_serving_acceptance_length_tokens",
    kind="gauge",
    unit="tokens",
    description="Tokens committed per target verification over the latest cycles, bonus token included.",
    tags=REPLICA,
)


def _served(thing: str, description: str) -> Metric:
    return Metric(
        name=f"eagleray_serving_{thing}_total",
        kind="counter",
        unit="count",
        description=description,
        tags=REPLICA,
    )


REQUESTS = _served("requests", "HTTP requests that the engine was asked for.")
PROMPT_TOKENS = _served("prompt_tokens", "Tokens of prompts.")
REUSED_PROMPT_TOKENS = _served(
    "reused_prompt_tokens", "Tokens of prompts that were copied from earlier prompts instead of computed."
)
COMPLETION_TOKENS = _served("completion_tokens", "Tokens of answers.")
CYCLES = _served("cycles", "Target verifications.")
DRAFTED_TOKENS = _served("drafted_tokens", "Draft tokens that were verified.")
ACCEPTED_TOKENS = _served("accepted_tokens", "Draft tokens that were delivered.")

SERVING = (
    HEALTH,
    UNFINISHED,
    ACCEPTANCE_LENGTH,
    REQUESTS,
    PROMPT_TOKENS,
    REUSED_PROMPT_TOKENS,
    COMPLETION_TOKENS,
    CYCLES,
    DRAFTED_TOKENS,
    ACCEPTED_TOKENS,
)
CATALOGUE = {metric.name: metric for metric in (*WATCHDOG, *TRAINING, *SWEEP, *SERVING)}
