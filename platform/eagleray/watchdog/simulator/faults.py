"""What goes wrong in a failing trace. Legend: `_J` job axis."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from eagleray.watchdog.frame import Bools, Floats, Ints
from eagleray.watchdog.simulator.jobs import draw
from eagleray.watchdog.verdicts import Kind

Fault = Literal[
    "oom_hang",
    "desync_hang",
    "equal_hang",
    "stopped",
    "straggler",
    "dead_rank",
    "data_block",
    "data_slow",
]
"""An allocation fails and nobody says so; a rank never enters an exchange; all enter it and none comes out;
a process is stopped; a rank works slowly; a process dies; a loader blocks; a loader feeds too little."""

FAULTS: tuple[Fault, ...] = get_args(Fault)

RIGHT_VERDICT: dict[Fault, Kind] = {
    "oom_hang": "oom_hang",
    "desync_hang": "collective_hang",
    "equal_hang": "collective_hang",
    "stopped": "collective_hang",
    "straggler": "straggler",
    "dead_rank": "dead_rank",
    "data_block": "data_starved",
    "data_slow": "data_starved",
}

OOM_PHASES = ("work", "optimizer", "compile", "evaluate", "checkpoint")
OOM_PHASE_WEIGHTS = (0.6, 0.1, 0.1, 0.12, 0.08)
NO_FAULT = -1
ODD_ONE_SHARE = 0.7


@dataclass(frozen=True, kw_only=True, eq=False)
class FaultPlan:
    """Which job fails how, who is the culprit, and from when on the next step may carry the fault."""

    fault_J: Ints
    """Index into `FAULTS`; `NO_FAULT` for a healthy job."""
    culprit_J: Ints
    odd_one_J: Bools
    """The culprit of an equal hang idles while the others spin (Libgpuarray 387). Otherwise the link between
    all is at fault, and no rank."""
    earliest_s_J: Floats
    oom_phase_J: Ints
    """Index into `OOM_PHASES`."""
    invisible_oom_J: Bools
    ramp_s_J: Floats


def no_faults(count: int) -> FaultPlan:
    """A plan for healthy jobs."""
    zeros = np.zeros(count, dtype=np.int64)
    return FaultPlan(
        fault_J=zeros + NO_FAULT,
        culprit_J=zeros,
        odd_one_J=zeros.astype(bool),
        earliest_s_J=np.full(count, np.inf),
        oom_phase_J=zeros,
        invisible_oom_J=zeros.astype(bool),
        ramp_s_J=zeros + 1.0,
    )


def draw_faults(
    rng: np.random.Generator,
    faults: Ints,
    ranks: int,
    *,
    earliest_s: tuple[float, float],
    ramp_s: tuple[float, float],
    invisible: float,
) -> FaultPlan:
    """One fault of a given sort per job."""
    count = len(faults)
    return FaultPlan(
        fault_J=faults,
        culprit_J=rng.integers(0, ranks, count),
        odd_one_J=rng.random(count) < ODD_ONE_SHARE,
        earliest_s_J=rng.uniform(*earliest_s, count),
        oom_phase_J=rng.choice(len(OOM_PHASES), count, p=OOM_PHASE_WEIGHTS),
        invisible_oom_J=rng.random(count) < invisible,
        ramp_s_J=draw(rng, ramp_s, count, log=True),
    )
