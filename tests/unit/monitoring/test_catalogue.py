"""The metric catalogue, its sink and its dashboards say the same."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagleray.monitoring import ray_metrics
from eagleray.monitoring.catalogue import (
    CATALOGUE,
    INCIDENTS,
    PHASE,
    SERVING,
    SILENCE,
    TRAINING,
    VERDICT,
    WATCHDOG,
    Metric,
)
from eagleray.monitoring.grafana import serving_dashboard, training_dashboard, watchdog_dashboard
from eagleray.monitoring.ray_metrics import RayMetrics
from eagleray.watchdog.config import DetectorConfig
from eagleray.watchdog.detector import advance
from eagleray.watchdog.gauges import readings
from eagleray.watchdog.simulator.fleet import Fleet
from eagleray.watchdog.simulator.ranges import TUNING
from eagleray.watchdog.state import initial_state
from eagleray.watchdog.telemetry import PHASES
from eagleray.watchdog.verdicts import KINDS

DASHBOARDS = Path(__file__).parents[3] / "configs" / "grafana" / "dashboards"


def test_names_say_room_thing_and_unit() -> None:
    endings = {unit: f"_{unit}" for unit in ("s", "ratio", "index", "requests", "tokens", "nats")} | {
        "count": "_total"
    }
    for metric in CATALOGUE.values():
        assert re.fullmatch(r"eagleray_[a-z]+(_[a-z]+)+", metric.name)
        assert metric.name.endswith(endings[metric.unit])
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert bool(metric.labels) == (metric.unit == "index")


def test_indices_mean_what_the_watchdog_means() -> None:
    assert PHASE.labels == PHASES
    assert VERDICT.labels == KINDS


def test_the_checked_in_dashboards_are_those_the_catalogue_gives() -> None:
    """After a change: `python -m jobs.dashboards`."""
    assert json.loads((DASHBOARDS / "watchdog.json").read_text()) == watchdog_dashboard()
    assert json.loads((DASHBOARDS / "training.json").read_text()) == training_dashboard()
    assert json.loads((DASHBOARDS / "serving.json").read_text()) == serving_dashboard()


@pytest.mark.parametrize(
    ("content", "metrics"),
    [(watchdog_dashboard(), WATCHDOG), (training_dashboard(), TRAINING), (serving_dashboard(), SERVING)],
)
def test_every_metric_has_a_panel_of_its_own(content: dict[str, Any], metrics: tuple[Metric, ...]) -> None:
    panels = content["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == len(metrics)
    for metric, panel in zip(metrics, panels, strict=True):
        assert f"ray_{metric.name}{{{metric.tags[0]}=~" in panel["targets"][0]["expr"]


def test_what_the_watchdog_reads_is_in_the_catalogue_and_leaves_out_what_is_missing() -> None:
    fleet = Fleet.healthy(np.random.default_rng(0), TUNING, 1, 2)
    frame = fleet.tick()
    state = initial_state(frame)
    for _ in range(5):
        frame = fleet.tick()
        state, _ = advance(state, frame, DetectorConfig())
    frame.phase_R[0, 1] = -1
    told = list(readings(state, frame))
    assert {reading.metric for reading in told} <= set(CATALOGUE)
    assert [reading.rank for reading in told if reading.metric == PHASE.name] == [0]
    assert not any(np.isnan(reading.value) for reading in told)


class Recorded:
    """Ray's metric with a memory."""

    calls: list[tuple[str, float, dict[str, str]]] = []

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]):
        self.name = name

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.calls.append((self.name, value, tags))

    inc = set


def test_the_sink_gives_gauges_and_counters_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_metrics, "Gauge", Recorded)
    monkeypatch.setattr(ray_metrics, "Counter", Recorded)
    sink = RayMetrics(WATCHDOG)
    sink.set(SILENCE, 3.0, {"run": "a", "rank": "1"})
    sink.add(INCIDENTS, 1, {"run": "a", "kind": "oom_hang"})
    assert Recorded.calls == [
        (SILENCE.name, 3.0, {"run": "a", "rank": "1"}),
        (INCIDENTS.name, 1, {"run": "a", "kind": "oom_hang"}),
    ]
    with pytest.raises(KeyError):
        sink.set(INCIDENTS, 1, {})
