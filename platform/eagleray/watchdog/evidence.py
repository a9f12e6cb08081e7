"""Why the detector thinks so, in sentences with the numbers seen. Legend: `_J` jobs; `_JR` jobs by ranks."""

from collections.abc import Iterator

import numpy as np

from eagleray.watchdog.frame import NO_PHASE, Bools, Floats, Frame
from eagleray.watchdog.learning import held_bytes
from eagleray.watchdog.rules.pace import EVERYBODY
from eagleray.watchdog.state import State
from eagleray.watchdog.telemetry import PHASES
from eagleray.watchdog.verdicts import Kind
from eagleray.watchdog.view import View, view_of

GIB = 2.0**30
MAX_NAMED = 8


def describe(
    kind: Kind, state: State, frame: Frame, stall_s_J: Floats, job: int, culprit: int
) -> tuple[str, ...]:
    """Sentences on one job of a batch; `culprit` below 0: no single one."""
    if kind == "healthy":
        return ("All ranks move again.",)
    if kind == "dead_rank":
        gone_R = state.dead_records_JR[job] > 0
        return (f"No process is left of {_ranks(gone_R)}.", *_last_word(state, job, culprit))
    if kind == "telemetry_lost":
        return tuple(_silence(state, job))
    view = view_of(state, frame, stall_s_J, stall_s_J < 0, np.array([job]))
    if kind == "straggler" or (kind == "data_starved" and state.slow_windows_J[job] > 1):
        return tuple(_pace(state, job, culprit))
    return (*_standstill(view, state, job, culprit), *_signs(view, state, frame, job, culprit))


def _standstill(view: View, state: State, job: int, culprit: int) -> Iterator[str]:
    yield (
        f"No rank has given a sign of life for {view.stall_s_J[0]:.0f} s; in this job's own healthy steps "
        f"the longest quiet time is usually {view.usual_quiet_s_J[0]:.1f} s."
    )
    if view.equal_J[0]:
        yield "Every rank has entered the same exchange and none has left it."
    else:
        inside_R = view.heard_JR[0] & ~view.missing_JR[0]
        missing = _ranks(view.missing_JR[0])
        if inside_R.any():
            yield f"{_ranks(inside_R).capitalize()} waited in an exchange that {missing} never entered."
        else:
            yield f"No exchange has begun; {missing} stand before it."
    if view.blind_J[0]:
        yield f"Nothing is heard of {_ranks(~view.heard_JR[0] & ~state.finished_JR[job])}."
    yield from _last_word(state, job, culprit)


def _signs(view: View, state: State, frame: Frame, job: int, culprit: int) -> Iterator[str]:
    ratio_R = view.power_ratio_JR[0]
    known_R = ratio_R[~np.isnan(ratio_R)]
    if len(known_R):
        yield f"Power is {known_R.min():.0%} to {known_R.max():.0%} of each rank's own healthy mean."
    if culprit < 0:
        return
    if (failed := view.failed_allocations_JR[0, culprit]) > 0:
        yield f"Rank {culprit} failed to allocate memory {failed:.0f} times since its last sign of life."
    if view.stopped_JR[0, culprit]:
        yield f"The process of rank {culprit} is stopped by a signal."
    growth = view.memory_growth_JR[0, culprit]
    held = held_bytes(state, frame)[job, culprit]
    if not np.isnan(growth) and not np.isnan(held):
        yield (
            f"Rank {culprit} holds {held / GIB:.1f} GiB, {growth:+.1%} against its own healthy mean, beyond "
            "what the median peer has grown by."
        )
    used_R = view.utilisation_JR[0]
    peers_R = np.delete(used_R, culprit)
    if not np.isnan(used_R[culprit]) and not np.isnan(peers_R).all():
        yield (
            f"Rank {culprit} has a utilisation of {used_R[culprit]:.0%}, its peers of "
            f"{np.nanmedian(peers_R):.0%} in the median."
        )


def _pace(state: State, job: int, culprit: int) -> Iterator[str]:
    if state.slow_rank_J[job] == EVERYBODY:
        yield "All ranks spend most of their time waiting for data."
        return
    where = "waiting for data" if state.slow_in_data_J[job] else "outside of waiting for data"
    yield (
        f"In each of the last {state.slow_windows_J[job]} windows rank {culprit} took longest to reach the "
        f"exchange; in the newest {state.slow_ratio_J[job]:.2f} times the median, {where}."
    )


def _silence(state: State, job: int) -> Iterator[str]:
    silent_s_R = state.time_s_J[job] - state.heard_s_JR[job]
    device_s_R = state.time_s_J[job] - state.device_heard_s_JR[job]
    if silent_s_R.max() > np.nanmin(silent_s_R) or silent_s_R.max() > 0:
        silent_R = silent_s_R >= max(1.0, 0.5 * silent_s_R.max())
        if silent_R.any():
            yield f"No record of {_ranks(silent_R)} for {silent_s_R.max():.0f} s."
    if not np.isnan(device_s_R).all() and np.nanmax(device_s_R) > 1:
        silent_R = device_s_R >= 0.5 * np.nanmax(device_s_R)
        yield f"No device telemetry of {_ranks(silent_R)} for {np.nanmax(device_s_R):.0f} s."
    yield "What is not known is not taken for zero: the other rules go on with what is known."


def _last_word(state: State, job: int, culprit: int) -> Iterator[str]:
    if culprit >= 0 and (phase := int(state.phase_JR[job, culprit])) != NO_PHASE:
        age_s = state.time_s_J[job] - state.beat_s_JR[job, culprit]
        yield f"The last word of rank {culprit} came {age_s:.0f} s ago, in the phase {PHASES[phase]}."


def _ranks(chosen_R: Bools) -> str:
    numbers = np.flatnonzero(chosen_R)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    named = ", ".join(map(str, numbers[:MAX_NAMED]))
    more = f" and {len(numbers) - MAX_NAMED} more" if len(numbers) > MAX_NAMED else ""
    return f"ranks {named}{more}"
