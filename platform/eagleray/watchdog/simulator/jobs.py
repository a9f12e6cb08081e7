"""The fixed properties of simulated jobs, drawn once. Legend: `_J` job axis; `_JP` jobs by phase."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eagleray.watchdog.frame import PHASE_CODE, Bools, Floats
from eagleray.watchdog.simulator.ranges import Range, Ranges
from eagleray.watchdog.telemetry import PHASES

WORK_PHASES = ("data", "target", "forward", "backward")
"""What a step does before its exchange, in order."""

EVENT_RATES = {
    "compile": "recompiles_per_hour",
    "checkpoint": "checkpoints_per_hour",
    "evaluate": "evaluations_per_hour",
    "data_stall": "data_stalls_per_hour",
    "hiccup": "hiccups_per_hour",
    "flap": "flaps_per_hour",
}
"""Things that stretch one step of a healthy job -> the range of how often they happen."""

CONDITION_RATES = {
    "low_power": "low_power_per_hour",
    "slow_rank": "slow_rank_per_hour",
    "node_loss": "node_losses_per_hour",
    "device_loss": "device_losses_per_hour",
}
"""Conditions that last for a while and end by themselves -> the range of how often they begin."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Jobs:
    """Properties of jobs of one size."""

    ranks: int
    work_s_J: Floats
    """Mean seconds of a step before the exchange."""
    comm_s_J: Floats
    optimizer_s_J: Floats
    spread_J: Floats
    share_J4: Floats
    """Of the work phases."""
    power_w_JP: Floats
    utilisation_JP: Floats
    mean_power_w_J: Floats
    """Over a whole step: what one-second energy differences of shorter steps show."""
    mean_utilisation_J: Floats
    low_power_ratio_J: Floats
    power_noise_J: Floats
    frozen_counters_J: Bools
    has_device_J: Bools
    memory_ratio_JR: Floats
    total_bytes_J: Floats
    has_counters_J: Bools
    lost_record_J: Floats
    pulses_J: Bools
    """The evaluation says how far it is; otherwise it is silent to its end."""
    all_ranks_save_J: Bools
    rate_per_s: Mapping[str, Floats]
    """Event or condition -> how often it begins, per job."""

    @property
    def count(self) -> int:
        """How many jobs."""
        return len(self.work_s_J)


def draw(rng: np.random.Generator, bounds: Range, count: int, *, log: bool = False) -> Floats:
    """`count` uniform or log-uniform values."""
    low, high = bounds
    if log:
        return np.exp(rng.uniform(np.log(low), np.log(high), count))
    return rng.uniform(low, high, count)


def draw_jobs(rng: np.random.Generator, ranges: Ranges, count: int, ranks: int) -> Jobs:
    """Draw `count` jobs of `ranks` ranks."""
    step_s_J = draw(rng, ranges.step_s, count, log=True)
    comm_share_J = draw(rng, ranges.comm_share, count)
    optimizer_share_J = rng.uniform(0.01, 0.08, count)
    share_J4 = rng.dirichlet([0.6, 2.0, 3.0, 5.0], count)
    share_J4[rng.random(count) < 0.5, 1] = 0.0  # stored features: no target in the loop
    share_J4 /= share_J4.sum(axis=1, keepdims=True)
    power_w_JP, utilisation_JP = _device_levels(rng, ranges, count)
    spent_JP = np.zeros((count, len(PHASES)))
    work_share_J = 1 - comm_share_J - optimizer_share_J
    for column, phase in enumerate(WORK_PHASES):
        spent_JP[:, PHASE_CODE[phase]] = work_share_J * share_J4[:, column]
    spent_JP[:, PHASE_CODE["collective"]] = comm_share_J
    spent_JP[:, PHASE_CODE["optimizer"]] = optimizer_share_J
    memory_ratio_JR = np.repeat(draw(rng, ranges.memory_ratio, count)[:, None], ranks, axis=1)
    memory_ratio_JR *= 1 + rng.normal(0.0, 0.004, (count, ranks))
    memory_ratio_JR[:, 0] *= 1 + draw(rng, ranges.memory_imbalance, count)
    rate_fields = EVENT_RATES | CONDITION_RATES | {"caught_oom": "caught_ooms_per_hour"}
    rates = {
        name: draw(rng, getattr(ranges, field), count, log=True) / 3600 for name, field in rate_fields.items()
    }
    return Jobs(
        ranks=ranks,
        work_s_J=step_s_J * work_share_J,
        comm_s_J=step_s_J * comm_share_J,
        optimizer_s_J=step_s_J * optimizer_share_J,
        spread_J=draw(rng, ranges.spread_ratio, count),
        share_J4=share_J4,
        power_w_JP=power_w_JP,
        utilisation_JP=utilisation_JP,
        mean_power_w_J=(spent_JP * power_w_JP).sum(axis=1),
        mean_utilisation_J=(spent_JP * utilisation_JP).sum(axis=1),
        low_power_ratio_J=draw(rng, ranges.memory_bound_ratio, count),
        power_noise_J=draw(rng, ranges.power_noise, count),
        frozen_counters_J=rng.random(count) < ranges.frozen_counters,
        has_device_J=rng.random(count) >= ranges.no_device_telemetry,
        memory_ratio_JR=np.minimum(memory_ratio_JR, 0.985),
        total_bytes_J=rng.choice(np.array([24, 40, 80, 141, 192]), count) * float(1 << 30),
        has_counters_J=rng.random(count) >= ranges.no_allocator_counters,
        lost_record_J=draw(rng, ranges.lost_record, count),
        pulses_J=rng.random(count) < 0.5,
        all_ranks_save_J=rng.random(count) < 0.5,
        rate_per_s=rates,
    )


def _device_levels(rng: np.random.Generator, ranges: Ranges, count: int) -> tuple[Floats, Floats]:
    """Power and utilisation of each phase."""
    limit_w_J = draw(rng, ranges.limit_w, count)
    busy_J, idle_J = draw(rng, ranges.busy_ratio, count), draw(rng, ranges.idle_ratio, count)
    idle_J = np.minimum(idle_J, 0.8 * busy_J)
    spin_J = np.maximum(draw(rng, ranges.spin_ratio, count), idle_J)
    power_JP = np.repeat(idle_J[:, None], len(PHASES), axis=1)
    utilisation_JP = np.zeros_like(power_JP)
    for phase, level_J, used_J in (
        ("data", idle_J + 0.1 * (busy_J - idle_J), rng.uniform(0.0, 0.3, count)),
        ("target", busy_J, np.full(count, 0.99)),
        ("forward", busy_J, np.full(count, 0.98)),
        ("backward", busy_J, np.full(count, 0.99)),
        ("collective", spin_J, np.full(count, 1.0)),
        ("optimizer", 0.7 * busy_J, np.full(count, 0.95)),
        ("evaluate", busy_J * rng.uniform(0.25, 1.0, count), rng.uniform(0.5, 1.0, count)),
    ):
        power_JP[:, PHASE_CODE[phase]] = level_J
        utilisation_JP[:, PHASE_CODE[phase]] = used_J
    return power_JP * limit_w_J[:, None], utilisation_JP
