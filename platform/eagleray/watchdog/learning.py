"""What a second of telemetry teaches of a job: its ranks' last word, its pace, its usual power and memory.

Only healthy time teaches: pauses that are announced and standstills that were warned of leave no mark.
Legend: `_J` jobs; `_JR` jobs by ranks.
"""

from dataclasses import replace

import numpy as np

from eagleray.watchdog.config import DetectorConfig
from eagleray.watchdog.frame import NO_PHASE, PHASE_CODE, Bools, Floats, Frame, any_rank
from eagleray.watchdog.state import REMEMBERED_STEPS, State
from eagleray.watchdog.telemetry import PHASES

MEAN_OVER_S = 300
"""Seconds over which power and memory are averaged: long enough that a climb to the limit stands out."""
SPARSE_LEARNING = 8
"""Steps between two looks at the quantiles of a job that has taken more than twice as many."""
MOVING_S = 5.0
"""A job that was heard of so recently moves; longer standstills teach nothing of its power."""
WORK = [PHASE_CODE[name] for name in ("target", "forward", "backward", "collective", "optimizer", "data")]
_IS_WORK = np.array([code in WORK for code in range(len(PHASES))] + [False])


def hear(state: State, frame: Frame, watched_s_J: Floats) -> State:
    """Take every rank's newest word; what is missing keeps its last value.

    Args:
        watched_s_J: Seconds since the frame before that count. A machine that was suspended wakes with old
            words of all ranks, and none of them has had time to say more.
    """
    time_s_J, phase_JR = frame.time_s, frame.phase_R
    heard_JR = phase_JR != NO_PHASE
    beat_s_JR = time_s_J[:, None] - frame.beat_age_s_R
    moved_JR = heard_JR & (beat_s_JR > state.beat_s_JR + 1e-3)
    unwatched_s_J = time_s_J - state.time_s_J - watched_s_J
    # Once a rank has finished, the others are taken down with it; but a rank that died first stays dead.
    taken_down_J = any_rank(state.finished_JR)[:, None]
    dead_JR = (frame.alive_R == 0) & (~taken_down_J | (state.dead_records_JR > 0))
    failed_JR = frame.oom_count_R > state.oom_count_JR
    return replace(
        state,
        time_s_J=time_s_J,
        heard_s_JR=np.where(heard_JR, time_s_J[:, None], state.heard_s_JR),
        device_heard_s_JR=np.where(np.isnan(frame.power_w_R), state.device_heard_s_JR, time_s_J[:, None]),
        phase_JR=np.where(heard_JR, phase_JR, state.phase_JR),
        beat_s_JR=np.where(heard_JR, beat_s_JR, state.beat_s_JR),
        unwatched_s_JR=np.where(moved_JR, 0.0, state.unwatched_s_JR) + unwatched_s_J[:, None],
        collectives_JR=np.where(heard_JR, frame.collectives_R, state.collectives_JR),
        finished_JR=state.finished_JR | (frame.finished_R == 1),
        stopped_JR=np.where(np.isnan(frame.stopped_R), state.stopped_JR, frame.stopped_R == 1),
        utilisation_JR=np.where(np.isnan(frame.utilisation_R), state.utilisation_JR, frame.utilisation_R),
        dead_records_JR=np.where(
            dead_JR, state.dead_records_JR + 1, np.where(frame.alive_R == 1, 0, state.dead_records_JR)
        ),
        # An allocation that failed in the same second as the sign of life may have failed after it.
        oom_count_before_beat_JR=np.where(moved_JR, state.oom_count_JR, state.oom_count_before_beat_JR),
        failed_s_JR=np.where(failed_JR, time_s_J[:, None], state.failed_s_JR),
        oom_count_JR=np.where(np.isnan(frame.oom_count_R), state.oom_count_JR, frame.oom_count_R),
    )


def stall_s(state: State, hearing_s: float) -> Floats:
    """Seconds without a sign of life from any rank that can be heard; 0 when none can.

    Counted up to when a rank was last heard: what it does since is not known.
    """
    deaf_JR = (state.time_s_J[:, None] - state.heard_s_JR > hearing_s) | state.finished_JR
    age_JR = np.where(deaf_JR, np.inf, state.heard_s_JR - state.beat_s_JR - state.unwatched_s_JR)
    stall_s_J = age_JR.min(axis=1)
    return np.where(np.isfinite(stall_s_J), np.maximum(stall_s_J, 0.0), 0.0)


def excused(state: State, config: DetectorConfig) -> Bools:
    """Jobs of which a rank is in a pause that it has announced and not overdone."""
    ceiling_s = np.zeros(len(PHASES) + 1)
    for phase, limit_s in config.ceiling_s.items():
        ceiling_s[PHASE_CODE[phase]] = limit_s
    age_JR = state.time_s_J[:, None] - state.beat_s_JR
    return any_rank((age_JR < ceiling_s[state.phase_JR]) & ~state.finished_JR)


def learn(
    state: State, frame: Frame, stall_s_J: Floats, excused_J: Bools, passed_s_J: Floats, limit_s_J: Floats
) -> State:
    """Update pace, power and memory.

    Args:
        passed_s_J: Seconds since the frame before that count.
        limit_s_J: Stalls beyond this are warned of and teach no more than it.
    """
    quiet_s_J = np.where(excused_J, state.quiet_s_J, np.maximum(state.quiet_s_J, stall_s_J))
    unheard_J = ~any_rank(frame.phase_R != NO_PHASE)
    unexcused_s_J = state.unexcused_s_J + np.where(excused_J | unheard_J, 0.0, passed_s_J)
    step_J = np.fmax(np.fmax.reduce(frame.step_R, axis=1), state.step_J)
    stepped_J = step_J > state.step_J
    state = replace(state, quiet_s_J=quiet_s_J, unexcused_s_J=unexcused_s_J)
    if stepped_J.any():
        state = _learn_pace(state, frame, step_J, np.flatnonzero(stepped_J), limit_s_J)
    moving_J = (stall_s_J < MOVING_S) & ~excused_J
    return _learn_levels(state, frame, moving_J)


def _learn_pace(state: State, frame: Frame, step_J: Floats, rows: np.ndarray, limit_s_J: Floats) -> State:
    slot_J = state.learned_J[rows] % REMEMBERED_STEPS
    quiet_s_JN, steps_s_JN = state.quiet_s_JN.copy(), state.steps_s_JN.copy()
    quiet_s_JN[rows, slot_J] = np.minimum(state.quiet_s_J[rows], limit_s_J[rows])
    steps_s_JN[rows, slot_J] = state.unexcused_s_J[rows] / (step_J[rows] - state.step_J[rows])
    learned_J, step_s_J = state.learned_J.copy(), state.step_s_J.copy()
    learned_J[rows] += 1
    step_s_J[rows] = frame.time_s[rows] - np.fmin.reduce(frame.step_age_s_R[rows], axis=1)
    quiet_s_J, unexcused_s_J = state.quiet_s_J.copy(), state.unexcused_s_J.copy()
    quiet_s_J[rows] = unexcused_s_J[rows] = 0.0
    usual_J, longest_J = state.usual_quiet_s_J, state.longest_step_s_J
    count_J = learned_J[rows]
    look = rows[(count_J < 2 * SPARSE_LEARNING) | (count_J % SPARSE_LEARNING == 0)]
    if len(look):
        usual_J, longest_J = usual_J.copy(), longest_J.copy()
        known_J = np.minimum(learned_J[look], REMEMBERED_STEPS)
        place_J = REMEMBERED_STEPS - np.maximum(1, np.rint(0.05 * known_J)).astype(np.int64)
        usual_J[look] = np.take_along_axis(np.sort(quiet_s_JN[look], axis=1), place_J[:, None], 1)[:, 0]
        longest_J[look] = steps_s_JN[look].max(axis=1)
    return replace(
        state,
        step_J=step_J,
        step_s_J=step_s_J,
        learned_J=learned_J,
        quiet_s_J=quiet_s_J,
        unexcused_s_J=unexcused_s_J,
        quiet_s_JN=quiet_s_JN,
        steps_s_JN=steps_s_JN,
        usual_quiet_s_J=usual_J,
        longest_step_s_J=longest_J,
    )


def _learn_levels(state: State, frame: Frame, moving_J: Bools) -> State:
    """Running means of power and memory over the seconds in which the job moved."""
    working_JR = moving_J[:, None] & _IS_WORK[state.phase_JR]
    memory_JR = held_bytes(state, frame)
    power_known_JR = working_JR & ~np.isnan(frame.power_w_R)
    memory_known_JR = working_JR & ~np.isnan(memory_JR)
    seen_power_JR = state.seen_power_JR + power_known_JR
    seen_memory_JR = state.seen_memory_JR + memory_known_JR
    power_step_JR = (frame.power_w_R - state.power_w_JR) / np.clip(seen_power_JR, 1, MEAN_OVER_S)
    memory_step_JR = (memory_JR - state.memory_bytes_JR) / np.clip(seen_memory_JR, 1, MEAN_OVER_S)
    return replace(
        state,
        power_w_JR=state.power_w_JR + np.where(power_known_JR, power_step_JR, 0.0),
        memory_bytes_JR=state.memory_bytes_JR + np.where(memory_known_JR, memory_step_JR, 0.0),
        seen_power_JR=seen_power_JR,
        seen_memory_JR=seen_memory_JR,
    )


def held_bytes(state: State, frame: Frame) -> Floats:
    """Device memory of each rank; memory of its process in jobs that no device ever told of."""
    no_device_J = np.isnan(state.device_heard_s_JR).all(axis=1, keepdims=True)
    return np.where(no_device_J, frame.rss_bytes_R, frame.used_bytes_R)
