"""From what a simulated job's properties are drawn, and where the figures come from.

Two sets: `TUNING`, which may be looked at while the detector is written, and `HELD_OUT`, wider on every axis,
which is only for the figures that are told. Figures in the comments are public: NCCL issues 968 and 1550
(power while waiting), marin issues 7344 and 8870 (a stalled GB200 job; telemetry that was null), DLRover and
NVRx defaults (how long healthy pauses last), A100 and GB10 idle measurements.
"""

from dataclasses import dataclass, replace

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Lowest and highest of each property; `_s` and `_per_hour` ranges are drawn log-uniformly."""

    # Steps
    step_s: Range = (0.2, 12.0)
    comm_share: Range = (0.02, 0.25)
    spread_ratio: Range = (0.005, 0.10)
    """Standard deviation of work between ranks of one step, over its mean: unequal sequence lengths."""

    # Power as shares of the board limit.
    limit_w: Range = (250.0, 1200.0)
    busy_ratio: Range = (0.5, 0.95)
    """GB200 984 W of 1200 in marin 7344."""
    memory_bound_ratio: Range = (0.22, 0.71)
    """Healthy phases that wait for memory."""
    idle_ratio: Range = (0.06, 0.37)
    """H100 129..137 W of 700 (nccl 1550); an A100 idles at up to 146 W of 400."""
    spin_ratio: Range = (0.10, 0.25)
    """70 W at 100 % (nccl 968); 152 W of 700 (nccl 1550)."""
    power_noise: Range = (0.01, 0.08)
    frozen_counters: float = 0.03
    """Share of jobs whose power and utilisation read the same at work and stuck (gfx1151: 100 %, 54 W)."""
    no_device_telemetry: float = 0.10
    """Share of jobs without power, utilisation and device memory: CPU runs, containers without NVML."""

    # Memory
    memory_ratio: Range = (0.45, 0.97)
    """Of the device; caching allocators keep healthy jobs close to the limit."""
    memory_imbalance: Range = (0.0, 0.08)
    """How much more the first rank holds."""
    no_allocator_counters: float = 0.03

    # Pauses that are announced by a phase.
    init_s: Range = (5.0, 180.0)
    first_compile_s: Range = (5.0, 600.0)
    recompiles_per_hour: Range = (0.01, 0.5)
    recompile_s: Range = (5.0, 180.0)
    checkpoints_per_hour: Range = (0.5, 6.0)
    checkpoint_s: Range = (1.0, 600.0)
    """Up to a slow write to remote storage."""
    evaluations_per_hour: Range = (0.1, 1.0)
    evaluate_s: Range = (60.0, 1200.0)

    # Pauses that nobody announces.
    data_stalls_per_hour: Range = (0.05, 2.0)
    data_stall_s: Range = (2.0, 180.0)
    hiccups_per_hour: Range = (0.1, 4.0)
    hiccup_s: Range = (1.0, 30.0)
    """One rank stands still inside a phase: garbage collection, a page fault storm, a stolen processor."""
    flaps_per_hour: Range = (0.02, 0.5)
    flap_s: Range = (3.0, 40.0)
    """All ranks wait in an exchange while a link is repeated; it looks like a hang, and ends by itself."""
    caught_ooms_per_hour: Range = (0.01, 0.3)
    """Allocations that fail and are tried again with less, as benchmark modes and batch finders do."""
    low_power_per_hour: Range = (0.1, 2.0)
    low_power_s: Range = (10.0, 600.0)
    slow_rank_per_hour: Range = (0.05, 0.5)
    slow_rank_s: Range = (30.0, 600.0)
    slow_rank_ratio: Range = (1.05, 1.25)
    """A hot device or a busy host slows one rank for a while."""

    # Telemetry
    lost_record: Range = (0.0, 0.02)
    """Probability that one rank's record of one second is missing."""
    node_losses_per_hour: Range = (0.02, 0.5)
    node_loss_s: Range = (5.0, 600.0)
    """Eight ranks at once are not heard of."""
    device_losses_per_hour: Range = (0.02, 0.2)
    device_loss_s: Range = (10.0, 2636.0)
    """Power and memory are null while the ranks train: 2,636 samples in marin 8870."""

    # Faults
    straggler_ratio: Range = (1.5, 4.0)
    data_slow_ratio: Range = (1.0, 6.0)
    """Extra seconds of waiting for data per second of step."""
    oom_ramp_s: Range = (1.0, 30.0)
    oom_invisible: float = 0.05
    """Share of OOM hangs in which memory was near the limit on every rank alike."""


TUNING = Ranges()

HELD_OUT = replace(
    TUNING,
    step_s=(0.1, 20.0),
    comm_share=(0.01, 0.35),
    spread_ratio=(0.002, 0.15),
    limit_w=(200.0, 1400.0),
    busy_ratio=(0.4, 0.98),
    idle_ratio=(0.05, 0.40),
    spin_ratio=(0.08, 0.30),
    power_noise=(0.005, 0.12),
    frozen_counters=0.06,
    no_device_telemetry=0.15,
    memory_imbalance=(0.0, 0.12),
    no_allocator_counters=0.05,
    first_compile_s=(5.0, 900.0),
    recompile_s=(5.0, 300.0),
    checkpoint_s=(1.0, 900.0),
    evaluate_s=(60.0, 1800.0),
    data_stalls_per_hour=(0.05, 4.0),
    data_stall_s=(2.0, 220.0),
    hiccups_per_hour=(0.1, 8.0),
    hiccup_s=(1.0, 40.0),
    flaps_per_hour=(0.02, 1.0),
    flap_s=(3.0, 45.0),
    slow_rank_ratio=(1.05, 1.3),
    lost_record=(0.0, 0.05),
    node_loss_s=(5.0, 900.0),
    straggler_ratio=(1.4, 5.0),
    oom_ramp_s=(0.5, 60.0),
)
