"""The numbers of one second that a dashboard shows, by the names of the metric catalogue."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eagleray.watchdog.frame import NO_PHASE, Frame
from eagleray.watchdog.state import State
from eagleray.watchdog.view import view_of


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A value of a gauge; of the whole run where `rank` is None."""

    metric: str
    rank: int | None
    value: float


def readings(state: State, frame: Frame) -> Iterator[Reading]:
    """Readings of one job; what is missing is left out, so that a dashboard shows a gap and no zero."""
    one = np.zeros(1)
    view = view_of(state, frame, one, one > 0, np.array([0]))
    yield Reading(metric="eagleray_watchdog_verdict_index", rank=None, value=float(state.kind_J[0]))
    phase_R = np.where(frame.phase_R[0] == NO_PHASE, math.nan, frame.phase_R[0])
    for metric, values_R in (
        ("eagleray_watchdog_phase_index", phase_R),
        ("eagleray_watchdog_silence_s", frame.beat_age_s_R[0]),
        ("eagleray_watchdog_step_age_s", frame.step_age_s_R[0]),
        ("eagleray_watchdog_power_ratio", view.power_ratio_JR[0]),
        ("eagleray_watchdog_memory_growth_ratio", view.memory_growth_JR[0]),
    ):
        for rank, value in enumerate(values_R):
            if not math.isnan(value):
                yield Reading(metric=metric, rank=rank, value=float(value))
