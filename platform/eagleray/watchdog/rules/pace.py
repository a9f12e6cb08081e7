"""Ranks move, but not well: one works slowly, or waits for its data.

Compared are seconds of work per step, that is outside exchanges, over windows of at least one step. One slow
window is an accident (a checkpoint that one rank writes, a page fault storm); a verdict needs several in a
row with the same rank, fewer the slower it is. Legend: `_J` jobs; `_JR` jobs by ranks.
"""

from dataclasses import replace

import numpy as np

from eagleray.watchdog.config import DetectorConfig
from eagleray.watchdog.frame import Bools, Floats, Frame, Ints
from eagleray.watchdog.state import NOBODY, State

MIN_WINDOWS = 2
EVERYBODY = -2
"""The slow rank of a window in which all ranks waited for data most of the time."""


def compare_pace(state: State, frame: Frame, config: DetectorConfig) -> State:
    """Close the windows that are long enough, and count slow ones in a row."""
    complete_J = (state.step_J > state.window_step_J) & (
        state.step_s_J - state.window_s_J >= config.straggler_window_s
    )
    # A rank that was not heard in this second leaves its window open for another.
    complete_J &= ~np.isnan(frame.waited_s_R).any(axis=1)
    rows = np.flatnonzero(complete_J)
    if not len(rows):
        return state
    slow_J, in_data_J, ratio_J = _slow_rank(state, frame, config, rows)
    again_J = (slow_J == state.slow_rank_J[rows]) & (slow_J != NOBODY)
    windows_J = np.where(again_J, state.slow_windows_J[rows] + 1, slow_J != NOBODY)
    excess_J = np.where(again_J, state.slow_excess_J[rows], 0.0) + ratio_J - 1
    return replace(
        state,
        window_step_J=_put(state.window_step_J, rows, state.step_J[rows]),
        window_s_J=_put(state.window_s_J, rows, state.step_s_J[rows]),
        window_waited_s_JR=_put(state.window_waited_s_JR, rows, frame.waited_s_R[rows]),
        window_data_s_JR=_put(state.window_data_s_JR, rows, frame.data_s_R[rows]),
        slow_rank_J=_put(state.slow_rank_J, rows, slow_J),
        slow_windows_J=_put(state.slow_windows_J, rows, windows_J),
        slow_excess_J=_put(state.slow_excess_J, rows, excess_J),
        slow_in_data_J=_put(state.slow_in_data_J, rows, in_data_J),
        slow_ratio_J=_put(state.slow_ratio_J, rows, ratio_J),
    )


def slow(state: State, config: DetectorConfig) -> Bools:
    """Jobs in which enough windows in a row point at the same rank, or at data on all ranks."""
    enough_J = (state.slow_excess_J >= config.straggler_excess) | (state.slow_rank_J == EVERYBODY)
    return enough_J & (state.slow_windows_J >= MIN_WINDOWS)


def _slow_rank(state: State, frame: Frame, config: DetectorConfig, rows: Ints) -> tuple[Ints, Bools, Floats]:
    """The rank whose work stands out, whether waiting for data is why, and by what ratio."""
    length_s_J = state.step_s_J[rows] - state.window_s_J[rows]
    waited_JR = frame.waited_s_R[rows] - state.window_waited_s_JR[rows]
    data_JR = frame.data_s_R[rows] - state.window_data_s_JR[rows]
    work_JR = np.maximum(length_s_J[:, None] - waited_JR, 1e-3)
    ratio_JR = work_JR / _lower_median(work_JR)
    slow_J = ratio_JR.argmax(axis=1)
    jobs = np.arange(len(rows))
    ratio_J = ratio_JR[jobs, slow_J]
    without_data_JR = np.maximum(work_JR - data_JR, 1e-3)
    rest_J = (without_data_JR / _lower_median(without_data_JR))[jobs, slow_J]
    stands_out_J = ratio_J > config.straggler_ratio
    starved_J = (data_JR / length_s_J[:, None]).min(axis=1) > config.data_share_ratio
    slow_J = np.where(stands_out_J, slow_J, np.where(starved_J, EVERYBODY, NOBODY))
    return slow_J, starved_J | (rest_J < 1 + (ratio_J - 1) / 2), ratio_J


def _lower_median(values_JR: Floats) -> Floats:
    place = (values_JR.shape[1] - 1) // 2
    return np.partition(values_JR, place, axis=1)[:, place, None]


def _put(values: np.ndarray, rows: Ints, new: np.ndarray) -> np.ndarray:
    changed = values.copy()
    changed[rows] = new
    return changed
