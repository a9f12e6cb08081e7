"""What is asked of the autoscaler, through Ray's own coordinator of requests, which needs no cluster."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from ray.autoscaler.sdk import request_resources
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
    DefaultAutoscalingCoordinator,
    _AutoscalingCoordinatorActor,
)
from ray.exceptions import RayActorError

from eagleray.cluster.machines import EXPIRES_S, RayMachines, resources_of
from eagleray.training.config import StreamConfig, TrainingConfig

TRAINING = TrainingConfig(global_batch_size=4, workers=2)
OTHERS = [{"CPU": 7.0}]


class Cluster:
    """Ray's coordinator, another training that asked it first, and what the autoscaler hears."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.heard: list[list[dict[str, float]]] = []
        self.coordinator = _AutoscalingCoordinatorActor(
            get_current_time=lambda: self.time_s,
            send_resources_request=lambda bundles, selectors=None: self.heard.append(list(bundles)),
            get_cluster_nodes=list,
        )
        self.client("other").request_resources(resources=OTHERS, expire_after_s=1e9)

    def client(self, name: str) -> DefaultAutoscalingCoordinator:
        methods = ("request_resources", "cancel_request")
        actor = SimpleNamespace(
            **{each: SimpleNamespace(remote=getattr(self.coordinator, each)) for each in methods}
        )
        return DefaultAutoscalingCoordinator(name, autoscaling_coordinator_actor=actor)


def test_all_workers_are_asked_for_beside_what_others_need_and_taken_back_alone() -> None:
    cluster = Cluster()
    machines = RayMachines(TRAINING, "eagle3", gpus=True, coordinator=cluster.client("waits"))
    for _ in range(3):
        machines.ask()
    both = [*OTHERS, {"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}]
    assert cluster.heard == [OTHERS, both]
    machines.withdraw()
    machines.withdraw()
    assert cluster.heard == [OTHERS, both, OTHERS]


def test_a_driver_that_dies_while_it_waits_asks_for_nothing_for_long() -> None:
    cluster = Cluster()
    machines = RayMachines(TRAINING, "eagle3", gpus=False, coordinator=cluster.client("waits"))
    machines.ask()
    for cluster.time_s in (EXPIRES_S - 1, EXPIRES_S + 1):
        cluster.coordinator._tick()
    assert cluster.heard[-2:] == [[*OTHERS, {"CPU": 1.0}, {"CPU": 1.0}], OTHERS]


def test_target_processes_of_a_stream_are_asked_for_too_in_bundles_that_ray_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = StreamConfig(min_workers=2, max_workers=4, cpus_per_worker=3, gpus_per_worker=0.5)
    streamed = TRAINING.model_copy(update={"features": "streamed", "stream": stream})
    wanted = resources_of(streamed, gpus=True)
    assert wanted == [{"CPU": 1.0, "GPU": 1.0}] * 2 + [{"CPU": 3.0, "GPU": 0.5}] * 2
    assert resources_of(streamed, gpus=False) == [{"CPU": 1.0}] * 2 + [{"CPU": 3.0}] * 2
    taken: list[Any] = []
    monkeypatch.setattr(
        "ray.autoscaler._private.commands.request_resources", lambda *told: taken.append(told)
    )
    request_resources(bundles=wanted)
    assert taken == [(None, wanted, None)]


def test_a_coordinator_that_is_away_costs_one_warning_and_no_wait(caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        def request_resources(self, **_: Any) -> None:
            raise RayActorError

        def cancel_request(self) -> None:
            pytest.fail("nothing was asked for")

    coordinator: Any = Away()
    machines = RayMachines(TRAINING, "eagle3", gpus=False, coordinator=coordinator)
    with caplog.at_level(logging.WARNING):
        machines.ask()
        machines.ask()
        machines.withdraw()
    assert len(caplog.records) == 1
    assert "eagle3 could not ask the autoscaler" in caplog.text
