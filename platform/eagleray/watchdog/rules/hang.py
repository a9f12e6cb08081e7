"""Ranks wait for each other and nobody moves.

An allocation failure that nobody heard of and any other reason look alike from the peers; what tells them
apart is the culprit: failed allocations since its last sign of life, or memory that has grown beyond that of
its peers. Legend: `_J` jobs; `_JR` jobs by ranks.
"""

import numpy as np

from eagleray.watchdog.config import DetectorConfig
from eagleray.watchdog.frame import Bools, Floats
from eagleray.watchdog.view import DATA, Finding, View, single

SIGN = 1e6
"""A sign outweighs any difference in how long ranks have been silent."""
SAME_TIME_S = 1.0
"""Of ranks that fell silent within so long of each other, none was first."""
BUSY_UTILISATION = 0.9
IDLE_UTILISATION = 0.5


def find_oom_hang(view: View, config: DetectorConfig) -> Finding:
    """A rank failed to allocate and the others wait for it.

    A counted failure is a reason to look sooner, and also inside announced pauses; but to end an attempt only
    when the pause is overdone, because evaluations and checkpoints survive failures that they expect.
    """
    failed_JR = (view.failed_allocations_JR > 0) & view.suspects_JR
    counted_J = failed_JR.any(axis=1)
    signs_JR = 4.0 * failed_JR + 1.0 * (
        view.suspects_JR & (view.memory_growth_JR > config.memory_growth_ratio)
    )
    warn_J, end_J = patience_s(view, config)
    soon_J = np.maximum(config.oom_warn_after_s, config.warn_quiet_factor * view.usual_quiet_s_J)
    warn_J = np.where(counted_J & ~is_new(view, config), np.minimum(warn_J, soon_J), warn_J)
    # A loader may survive what it failed to allocate, and storage may stall at the same time.
    end_J = np.where(waits_for_data(view), np.maximum(end_J, config.data_end_after_s), end_J)
    silent_s_J = np.where(failed_JR, view.failed_s_JR, 0.0).max(axis=1)
    silent_s_J = np.where(view.excused_J, silent_s_J, view.stall_s_J)
    found_J = (signs_JR > 0).any(axis=1) & (silent_s_J > warn_J)
    return Finding(
        found_J=found_J,
        culprit_J=single(view.suspects_JR, SIGN * signs_JR + view.age_s_JR, SAME_TIME_S),
        ends_J=found_J & ~view.excused_J & (view.stall_s_J > end_J),
        confidence_J=np.where(counted_J, 0.9, 0.7) + np.where(low_power(view, config), 0.08, 0.0),
    )


def find_collective_hang(view: View, config: DetectorConfig) -> Finding:
    """The ranks wait in an exchange that one of them has not entered, or that none of them leaves."""
    warn_J, end_J = patience_s(view, config)
    stopped_J = (view.stopped_JR & view.suspects_JR).any(axis=1)
    end_J = np.where(stopped_J, np.minimum(end_J, config.stopped_end_after_s), end_J)
    found_J = ~view.excused_J & (view.stall_s_J > warn_J) & ~waits_for_data(view)
    apart_JR = np.where(view.equal_J[:, None], SIGN * _odd_one_out(view), view.age_s_JR)
    return Finding(
        found_J=found_J,
        culprit_J=single(view.suspects_JR, 8 * SIGN * view.stopped_JR + apart_JR, SAME_TIME_S),
        ends_J=found_J & (view.stall_s_J > end_J),
        confidence_J=np.where(view.equal_J, 0.6, 0.75) + np.where(low_power(view, config), 0.15, 0.0),
    )


def find_data_block(view: View, config: DetectorConfig) -> Finding:
    """Every rank that the others wait for waits for data."""
    warn_J, end_J = patience_s(view, config)
    found_J = (
        waits_for_data(view)
        & ~view.excused_J
        & (view.stall_s_J > np.maximum(warn_J, config.data_warn_after_s))
    )
    return Finding(
        found_J=found_J,
        culprit_J=single(view.missing_JR, view.missing_JR.astype(float)),
        ends_J=found_J & (view.stall_s_J > np.maximum(end_J, config.data_end_after_s)),
        confidence_J=np.full(len(found_J), 0.85),
    )


def waits_for_data(view: View) -> Bools:
    """Every rank that the others wait for is in the phase `data`, and free to move."""
    elsewhere_JR = view.missing_JR & ((view.phase_JR != DATA) | view.stopped_JR)
    return view.missing_JR.any(axis=1) & ~elsewhere_JR.any(axis=1)


def low_power(view: View, config: DetectorConfig) -> Bools:
    """All ranks but at most one draw far less than they do at work."""
    low_JR = view.power_ratio_JR < config.low_power_ratio
    known_J = (~np.isnan(view.power_ratio_JR)).sum(axis=1)
    return (known_J > 0) & (low_JR.sum(axis=1) >= np.maximum(known_J - 1, 1))


def is_new(view: View, config: DetectorConfig) -> Bools:
    """The job's own pace is not known yet."""
    return view.learned_J < config.first_steps


def patience_s(view: View, config: DetectorConfig) -> tuple[Floats, Floats]:
    """Seconds to wait before a warning, and before the end."""
    new_J = is_new(view, config)
    warn_J = np.maximum(config.warn_after_s, config.warn_quiet_factor * view.usual_quiet_s_J)
    warn_J = np.where(new_J, config.first_warn_after_s, warn_J)
    working_J = ((view.power_ratio_JR > config.working_power_ratio) & view.suspects_JR).any(axis=1)
    end_J = np.where(working_J, config.end_after_working_s, config.end_after_s)
    end_J = np.where(view.blind_J, config.end_after_blind_s, end_J)
    end_J = np.maximum(end_J, config.end_quiet_factor * view.usual_quiet_s_J)
    return warn_J, np.where(new_J, np.maximum(end_J, config.first_end_after_s), end_J)


def _odd_one_out(view: View) -> Floats:
    """1 for the only rank whose device idles while those of most others spin in the exchange."""
    idle_JR = view.utilisation_JR < IDLE_UTILISATION
    busy_J = (view.utilisation_JR > BUSY_UTILISATION).sum(axis=1)
    odd_J = (idle_JR.sum(axis=1) == 1) & (busy_J >= np.maximum(1, view.heard_JR.sum(axis=1) // 2))
    return (idle_JR & odd_J[:, None]).astype(float)
