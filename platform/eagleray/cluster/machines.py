"""The machines under a training: how much room they have, and a word to the autoscaler for want of them.

Ray keeps one request for machines per cluster, and its coordinator writes it: trainings and datasets tell
it what they need, under a name each, and it asks for the sum. Ray Train does so for a worker group that it
starts; between attempts there is none, so waiting has a name of its own. A request that is not repeated
expires, so none outlives a driver that was killed.
"""

import logging
from typing import Protocol
from uuid import uuid4

import ray
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
    DefaultAutoscalingCoordinator,
)
from ray.exceptions import RayError

from eagleray.training.config import TrainingConfig

EXPIRES_S = 60.0
"""After the last time it was asked for; waiting asks every few seconds."""

logger = logging.getLogger(__name__)


class Machines(Protocol):
    """What the attempts of a training run on."""

    def room(self) -> int:
        """Workers that the machines which are there can hold."""
        ...

    def ask(self) -> None:
        """Ask for machines that hold all workers. Never fails; without an autoscaler nothing comes of it."""
        ...

    def withdraw(self) -> None:
        """Take back what was asked for, if anything was."""
        ...


class RayMachines:
    """The machines of the cluster that this process is connected to.

    Args:
        label: Of the training.
        gpus: Whether each worker has one.
        coordinator: Ray's, under a name of its own. None: made when it is needed.
    """

    def __init__(
        self,
        training: TrainingConfig,
        label: str,
        *,
        gpus: bool,
        coordinator: DefaultAutoscalingCoordinator | None = None,
    ):
        self._training = training
        self._label = label
        self._gpus = gpus
        self._coordinator = coordinator or DefaultAutoscalingCoordinator(f"eagleray-{label}-{uuid4().hex}")
        self._asked = False
        self._warned = False

    def room(self) -> int:
        """Workers that the machines can hold, beside the target processes of a stream."""
        resources = ray.cluster_resources()
        cpus = int(resources.get("CPU", 0)) - (self._training.cpus - self._training.workers)
        return min(cpus, int(resources.get("GPU", 0))) if self._gpus else cpus

    def ask(self) -> None:
        """Ask for room for all workers and the target processes of a stream, what there is included."""
        try:
            self._coordinator.request_resources(
                resources=resources_of(self._training, gpus=self._gpus), expire_after_s=EXPIRES_S
            )
            self._asked = True
        except (RayError, RuntimeError, ValueError) as error:
            self._warn(f"could not ask the autoscaler for machines: {error}. It goes on waiting for some.")

    def withdraw(self) -> None:
        """Let the autoscaler free them again; the workers of an attempt ask for themselves."""
        if not self._asked:
            return
        self._asked = False
        try:
            self._coordinator.cancel_request()
        except (RayError, RuntimeError, ValueError) as error:
            self._warn(
                f"could not take back what it asked of the autoscaler, which expires within {EXPIRES_S:g} s: "
                f"{error}"
            )

    def _warn(self, what: str) -> None:
        if not self._warned:
            logger.warning("Training %s %s", self._label, what)
        self._warned = True


def resources_of(training: TrainingConfig, *, gpus: bool) -> list[dict[str, float]]:
    """Resources of each process of a training; those of one must lie on one machine."""
    worker = {"CPU": 1.0, "GPU": 1.0} if gpus else {"CPU": 1.0}
    wanted = [dict(worker) for _ in range(training.workers)]
    if training.features == "streamed":
        pool = training.stream
        target = {"CPU": float(pool.cpus_per_worker)} | ({"GPU": pool.gpus_per_worker} if gpus else {})
        wanted += [dict(target) for _ in range(pool.min_workers)]
    return wanted
