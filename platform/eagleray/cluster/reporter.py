"""What a training tells while it runs: its log at every step, TensorBoard, Ray's metrics, and Ray Train."""

import time
from collections.abc import Mapping
from pathlib import Path

import ray.train

from eagleray.monitoring.catalogue import (
    LOSS,
    MIRROR_MISSED,
    PHASE_TIME,
    RATE,
    REPLAY_TAU,
    SLOT_ACCURACY,
    TAU_ESTIMATE,
    TRAINED_TOKENS,
    TRAINING,
)
from eagleray.monitoring.ray_metrics import RayMetrics
from eagleray.monitoring.tensorboard import TensorBoardLog
from eagleray.training.live_figures import accuracies, curves, phases_s, tau_estimate
from eagleray.training.metrics_log import MetricsLog
from eagleray.training.step_clock import StepClock

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"


class RayReporter:
    """Tells Ray Train of checkpoints."""

    def report(self, metrics: dict[str, float]) -> None:
        """Nothing: the first rank does."""
        self._latest = metrics

    def save(self, checkpoint: Path | None) -> None:
        """Report the figures at a checkpoint. Not at every step: Ray's report is a barrier over all ranks."""
        ray.train.report(self._latest)

    def should_stop(self) -> bool:
        """Never: a preempted run continues from its newest checkpoint."""
        return False

    def close(self) -> None:
        """Nothing is buffered."""


class FirstReporter(RayReporter):
    """Of the first rank, which tells everybody of every step.

    Args:
        run: Folder of the training; its name is the training's in metrics.
        peak_rate: Learning rate at its highest.
    """

    def __init__(self, run: Path, clock: StepClock, peak_rate: float):
        self._log = MetricsLog(run / METRICS)
        self._curves = TensorBoardLog(run / TENSORBOARD)
        self._metrics = RayMetrics(TRAINING)
        self._tags = {"run": run.name}
        self._clock = clock
        self._peak_rate = peak_rate
        self._tokens: float | None = None
        self._missed = 0.0
        self._since_s = time.perf_counter()

    def report(self, metrics: dict[str, float]) -> None:
        """Add seconds by phase, and tell."""
        super().report(metrics)
        now_s = time.perf_counter()
        split = {f"{phase}_s": seconds for phase, seconds in self._clock.split().items()}
        found = {**metrics, "wall_s": now_s - self._since_s, **split}
        self._since_s = now_s
        self._log.append(found)
        self._curves.append(int(metrics["step"]), curves(found))
        self._tell_ray(found)

    def close(self) -> None:
        """Write what is buffered."""
        self._curves.close()

    def _tell_ray(self, metrics: Mapping[str, float]) -> None:
        self._metrics.set(LOSS, metrics["loss"], self._tags)
        self._metrics.set(RATE, metrics["learning_rate"] / self._peak_rate, self._tags)
        self._metrics.set(TAU_ESTIMATE, tau_estimate(metrics), self._tags)
        if "replay_tau" in metrics:
            self._metrics.set(REPLAY_TAU, metrics["replay_tau"], self._tags)
        missed = metrics.get("mirror_missed", 0)
        if missed > self._missed:
            self._metrics.add(MIRROR_MISSED, missed - self._missed, self._tags)
        self._missed = missed
        for slot, value in enumerate(accuracies(metrics), start=1):
            self._metrics.set(SLOT_ACCURACY, value, {**self._tags, "slot": str(slot)})
        for phase, seconds in phases_s(metrics).items():
            self._metrics.set(PHASE_TIME, seconds, {**self._tags, "phase": phase})
        tokens, before = metrics["supervised_tokens"], self._tokens
        if before is not None and tokens > before:
            self._metrics.add(TRAINED_TOKENS, tokens - before, self._tags)
        self._tokens = tokens
