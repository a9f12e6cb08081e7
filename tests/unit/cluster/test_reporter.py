"""What the first rank tells of a step, and to whom."""

from pathlib import Path

import pytest

from eagleray.cluster.reporter import METRICS, TENSORBOARD, FirstReporter
from eagleray.monitoring import ray_metrics
from eagleray.monitoring.catalogue import (
    LOSS,
    MIRROR_MISSED,
    PHASE_TIME,
    RATE,
    REPLAY_TAU,
    SLOT_ACCURACY,
    TRAINED_TOKENS,
)
from eagleray.training.metrics_log import MetricsLog
from eagleray.training.step_clock import StepClock
from eagleray.watchdog.heartbeat import NoHeartbeat

STEP = {
    "step": 1,
    "total_steps": 2,
    "loss": 3.5,
    "grad_norm": 0.5,
    "learning_rate": 1e-3,
    "supervised_tokens": 100,
    "step_s": 2.0,
    "accuracy_slot_1": 0.5,
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, dict[str, str]]]:
    """Calls of Ray's metrics."""
    calls: list[tuple[str, float, dict[str, str]]] = []

    class Recorded:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]):
            self.name = name

        def set(self, value: float, tags: dict[str, str]) -> None:
            calls.append((self.name, value, tags))

        inc = set

    monkeypatch.setattr(ray_metrics, "Gauge", Recorded)
    monkeypatch.setattr(ray_metrics, "Counter", Recorded)
    return calls


def test_a_step_is_told_to_the_log_to_tensorboard_and_to_ray(
    tmp_path: Path, told: list[tuple[str, float, dict[str, str]]]
) -> None:
    times = iter((0.0, 0.0, 1.5, 1.5, 1.5, 1.5))
    clock = StepClock(NoHeartbeat(), lambda: next(times))
    run = tmp_path / "eagle3"
    reporter = FirstReporter(run, clock, peak_rate=2e-3)
    clock.enter("forward")
    reporter.report(STEP)
    reporter.report({**STEP, "step": 2, "supervised_tokens": 240, "replay_tau": 1.75, "mirror_missed": 2})
    reporter.close()
    first, second = MetricsLog(run / METRICS).read()
    assert first["forward_s"] == 1.5
    assert second["replay_tau"] == 1.75
    assert list((run / TENSORBOARD).glob("events.*"))
    named = {"run": "eagle3"}
    assert (LOSS.name, 3.5, named) in told
    assert (RATE.name, 0.5, named) in told
    assert (SLOT_ACCURACY.name, 0.5, {**named, "slot": "1"}) in told
    assert (PHASE_TIME.name, 1.5, {**named, "phase": "forward"}) in told
    assert [value for name, value, _ in told if name == REPLAY_TAU.name] == [1.75]
    assert [value for name, value, _ in told if name == MIRROR_MISSED.name] == [2]
    assert [value for name, value, _ in told if name == TRAINED_TOKENS.name] == [140]
