"""What rules look at: one second of standing jobs, compared with their own past and between ranks.

Legend: `_J` jobs; `_JR` jobs by ranks. NaN: not known.
"""

from dataclasses import dataclass

import numpy as np

from eagleray.watchdog.frame import PHASE_CODE, Bools, Floats, Frame, Ints, all_ranks, any_rank
from eagleray.watchdog.learning import held_bytes
from eagleray.watchdog.state import NOBODY, State, take

HEARING_S = 10.0
"""A rank of which nothing came for so long cannot be heard; single lost records are bridged."""
COLLECTIVE, DATA = PHASE_CODE["collective"], PHASE_CODE["data"]
MIN_SEEN = 10
"""Healthy seconds before a rank's own mean is used."""


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Jobs that stand still, as rules see them."""

    stall_s_J: Floats
    excused_J: Bools
    learned_J: Ints
    usual_quiet_s_J: Floats
    phase_JR: Ints
    age_s_JR: Floats
    heard_JR: Bools
    """Heard of lately, and not finished."""
    collectives_JR: Floats
    missing_JR: Bools
    """Heard, and not inside the exchange that a peer has entered: whom the others wait for."""
    failed_allocations_JR: Floats
    """Since the rank's last sign of life."""
    failed_s_JR: Floats
    """Seconds since the newest of them."""
    stopped_JR: Bools
    power_ratio_JR: Floats
    """Over the rank's own healthy mean."""
    utilisation_JR: Floats
    memory_growth_JR: Floats
    """Over the rank's own healthy mean, minus 1, minus the same of the median peer."""

    @property
    def blind_J(self) -> Bools:
        """Some rank cannot be heard."""
        return ~all_ranks(self.heard_JR)

    @property
    def equal_J(self) -> Bools:
        """Every rank that can be heard has entered the same exchange."""
        return ~any_rank(self.missing_JR)

    @property
    def suspects_JR(self) -> Bools:
        """Whom the others wait for; every rank that is heard when all have entered the same exchange."""
        return np.where(self.equal_J[:, None], self.heard_JR, self.missing_JR)


def view_of(state: State, frame: Frame, stall_s_J: Floats, excused_J: Bools, rows: Ints) -> View:
    """Look at some jobs."""
    state, frame = take(state, rows), take(frame, rows)
    heard_JR = (state.time_s_J[:, None] - state.heard_s_JR <= HEARING_S) & ~state.finished_JR
    entered_J = np.where(heard_JR, state.collectives_JR, -np.inf).max(axis=1, keepdims=True)
    inside_JR = (state.phase_JR == COLLECTIVE) & (state.collectives_JR == entered_J)
    with np.errstate(invalid="ignore", divide="ignore"):
        power_JR = np.where(state.seen_power_JR >= MIN_SEEN, frame.power_w_R / state.power_w_JR, np.nan)
        memory_JR = held_bytes(state, frame)
        growth_JR = np.where(state.seen_memory_JR >= MIN_SEEN, memory_JR / state.memory_bytes_JR - 1, np.nan)
    return View(
        stall_s_J=stall_s_J[rows],
        excused_J=excused_J[rows],
        learned_J=state.learned_J,
        usual_quiet_s_J=state.usual_quiet_s_J,
        phase_JR=state.phase_JR,
        age_s_JR=state.time_s_J[:, None] - state.beat_s_JR,
        heard_JR=heard_JR,
        collectives_JR=state.collectives_JR,
        missing_JR=heard_JR & ~inside_JR,
        failed_allocations_JR=state.oom_count_JR - state.oom_count_before_beat_JR,
        failed_s_JR=state.time_s_J[:, None] - state.failed_s_JR,
        stopped_JR=state.stopped_JR,
        power_ratio_JR=power_JR,
        utilisation_JR=state.utilisation_JR,
        memory_growth_JR=growth_JR - _lower_median(growth_JR),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Finding:
    """What one rule says of each job it looked at."""

    found_J: Bools
    culprit_J: Ints
    """`NOBODY`: none can be told."""
    ends_J: Bools
    confidence_J: Floats


def single(candidates_JR: Bools, score_JR: Floats, margin: float = 0.0) -> Ints:
    """The candidate with the highest score; `NOBODY` where another is within `margin`, or there is none."""
    scored_JR = np.where(candidates_JR, score_JR, -np.inf)
    best_J = scored_JR.argmax(axis=1)
    highest_J = scored_JR.max(axis=1, keepdims=True)
    alone_J = ((scored_JR >= highest_J - margin).sum(axis=1) == 1) & np.isfinite(highest_J[:, 0])
    return np.where(alone_J, best_J, NOBODY)


def _lower_median(values_JR: Floats) -> Floats:
    """Median over the known ranks, of two middle ones the lower, so that of two ranks it is the peer."""
    ordered_JR = np.sort(values_JR, axis=1)  # NaN last
    known_J = (~np.isnan(values_JR)).sum(axis=1)
    place_J = np.maximum(known_J - 1, 0) // 2
    return np.take_along_axis(ordered_JR, place_J[:, None], axis=1)
