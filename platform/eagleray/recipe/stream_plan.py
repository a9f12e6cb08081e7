"""The target processes of the feature mode `streamed`, on paper: their GPUs, and the memory of each."""

import math
from dataclasses import dataclass

from eagleray.errors import ConfigError
from eagleray.recipe.sections import MachinesConfig
from eagleray.targets.geometry import TargetGeometry
from eagleray.training.config import TrainingConfig
from eagleray.training.layout import MOST_PADDING
from eagleray.training.memory import GIB, RESERVE_RATIO, gib, head_parameters, target_parameters


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """What feeds the trainers."""

    processes: int
    """That there are from the start."""
    gpus_each: int
    weights_bytes: int
    """On the fullest GPU of a process: its share of the layers, and one of the two frozen matrices."""
    working_bytes: int
    """Of one micro-batch on its way through."""

    @property
    def gpu_bytes(self) -> int:
        """At the peak."""
        return self.weights_bytes + self.working_bytes


def plan_stream(
    training: TrainingConfig, geometry: TargetGeometry, layers: int, bytes_each: int
) -> StreamPlan | None:
    """Resolve the target processes of a training; None where it has none.

    Args:
        layers: That the drafter taps.
        bytes_each: Of one number of the target.
    """
    if training.features != "streamed":
        return None
    gpus = max(1, math.ceil(training.stream.gpus_per_worker))
    heads = head_parameters(geometry)
    of_layers = (target_parameters(geometry) - heads) // geometry.num_layers
    share = math.ceil(geometry.num_layers / gpus) * of_layers
    positions = training.micro_batch_size * training.max_length
    # Residual stream, norm, query, key, value and their mix; gate, up and their product; what is tapped.
    widths = 6 * geometry.hidden_size + 3 * geometry.intermediate_size
    padded = MOST_PADDING if training.pack else 1
    return StreamPlan(
        processes=training.stream.min_workers,
        gpus_each=gpus,
        weights_bytes=(share + (heads if gpus == 1 else heads // 2)) * bytes_each,
        working_bytes=positions * (widths + padded * (layers + 1) * geometry.hidden_size) * bytes_each,
    )


def check_stream(plan: StreamPlan, training: TrainingConfig, machines: MachinesConfig, section: str) -> None:
    """Check that trainers and target processes find room, and that the target fits.

    Raises:
        ConfigError: They do not.
    """
    if not machines.gpus_per_node:
        return
    wanted = training.workers + plan.processes * plan.gpus_each
    gpus = machines.nodes * machines.gpus_per_node
    if plan.gpus_each > machines.gpus_per_node or wanted > gpus:
        raise ConfigError(
            f"{section} asks for {training.workers} workers and {plan.processes} target processes of "
            f"{plan.gpus_each} GPUs each; there are {machines.nodes} machines with {machines.gpus_per_node} "
            f"GPUs. Lower workers, stream.min_workers or stream.gpus_per_worker of {section}, or raise "
            "machines.nodes."
        )
    usable = int((machines.gpu_memory_gib or 0) * GIB * (1 - RESERVE_RATIO))
    if plan.gpu_bytes > usable:
        raise ConfigError(
            f"A target process of {section} needs {gib(plan.weights_bytes)} of weights and "
            f"{gib(plan.working_bytes)} for a micro-batch on each of its {plan.gpus_each} GPUs; "
            f"{gib(usable)} can be planned with. Raise {section}.stream.gpus_per_worker."
        )
