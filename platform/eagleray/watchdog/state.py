"""What the detector remembers of jobs between two seconds.

A value: advancing makes a new one. All arrays have the job axis first, also for a single job.
Legend: `_J` jobs; `_JR` jobs by ranks; `_JN` jobs by remembered steps.
"""

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from eagleray.watchdog.frame import NO_PHASE, Bools, Floats, Frame, Ints

REMEMBERED_STEPS = 32
NOBODY = -1

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """Memory of a batch of jobs of one size."""

    # The last word of every rank.
    time_s_J: Floats
    heard_s_JR: Floats
    device_heard_s_JR: Floats
    phase_JR: Ints
    beat_s_JR: Floats
    unwatched_s_JR: Floats
    """Seconds since then in which nobody looked."""
    collectives_JR: Floats
    finished_JR: Bools
    stopped_JR: Bools
    utilisation_JR: Floats
    dead_records_JR: Ints
    oom_count_JR: Floats
    oom_count_before_beat_JR: Floats
    """Failed allocations before the second of the last sign of life."""
    failed_s_JR: Floats
    """When an allocation last failed."""

    # This job's own healthy time.
    step_J: Floats
    step_s_J: Floats
    """When the newest step ended."""
    quiet_s_J: Floats
    """Longest quiet time of the present step so far."""
    unexcused_s_J: Floats
    """Seconds of the present step outside announced pauses in which some rank was heard."""
    learned_J: Ints
    quiet_s_JN: Floats
    steps_s_JN: Floats
    usual_quiet_s_J: Floats
    """What the longest quiet time of a step is in 95 of 100 steps."""
    longest_step_s_J: Floats
    power_w_JR: Floats
    memory_bytes_JR: Floats
    seen_power_JR: Ints
    seen_memory_JR: Ints

    # The window in which ranks are compared.
    window_step_J: Floats
    window_s_J: Floats
    window_waited_s_JR: Floats
    window_data_s_JR: Floats
    slow_rank_J: Ints
    slow_windows_J: Ints
    slow_excess_J: Floats
    """Sum over these windows of the slow rank's work over the median's, less 1."""
    slow_in_data_J: Bools
    slow_ratio_J: Floats

    # What was told last.
    kind_J: Ints
    culprit_J: Ints
    ends_J: Bools


def initial_state(frame: Frame) -> State:
    """The state before the first second; `frame` gives the sizes and the time."""
    jobs, ranks = frame.phase_R.shape
    zeros_J, zeros_JR = np.zeros(jobs), np.zeros((jobs, ranks))
    none_J, never_JR = np.full(jobs, NOBODY), np.full((jobs, ranks), np.nan)
    now_s_JR = np.repeat(frame.time_s[:, None], ranks, axis=1)
    return State(
        time_s_J=frame.time_s,
        heard_s_JR=now_s_JR,
        device_heard_s_JR=never_JR,
        phase_JR=np.full((jobs, ranks), NO_PHASE, dtype=np.int8),
        beat_s_JR=now_s_JR,
        unwatched_s_JR=zeros_JR,
        collectives_JR=zeros_JR,
        finished_JR=zeros_JR > 0,
        stopped_JR=zeros_JR > 0,
        utilisation_JR=never_JR,
        dead_records_JR=zeros_JR.astype(np.int64),
        oom_count_JR=zeros_JR,
        oom_count_before_beat_JR=zeros_JR,
        failed_s_JR=zeros_JR,
        step_J=zeros_J,
        step_s_J=frame.time_s,
        quiet_s_J=zeros_J,
        unexcused_s_J=zeros_J,
        learned_J=zeros_J.astype(np.int64),
        quiet_s_JN=np.full((jobs, REMEMBERED_STEPS), -np.inf, dtype=np.float32),
        steps_s_JN=np.full((jobs, REMEMBERED_STEPS), -np.inf, dtype=np.float32),
        usual_quiet_s_J=zeros_J,
        longest_step_s_J=zeros_J,
        power_w_JR=zeros_JR,
        memory_bytes_JR=zeros_JR,
        seen_power_JR=zeros_JR.astype(np.int64),
        seen_memory_JR=zeros_JR.astype(np.int64),
        window_step_J=zeros_J,
        window_s_J=frame.time_s,
        window_waited_s_JR=zeros_JR,
        window_data_s_JR=zeros_JR,
        slow_rank_J=none_J,
        slow_windows_J=none_J + 1,
        slow_excess_J=zeros_J,
        slow_in_data_J=zeros_J > 0,
        slow_ratio_J=zeros_J,
        kind_J=none_J + 1,
        culprit_J=none_J,
        ends_J=zeros_J > 0,
    )


def take(record: RecordT, jobs: Ints) -> RecordT:
    """The same record of some of its jobs."""
    return replace(record, **{f.name: getattr(record, f.name)[jobs] for f in fields(record)})  # type: ignore
