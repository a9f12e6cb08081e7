"""One second of all ranks as arrays, which is what the detector computes with.

Every array's last axis is the rank: (ranks,) for one job, (jobs, ranks) for several jobs of one size. Rules
reduce over that axis only, so a single job and a thousand simulated ones run through the same code.
NaN: missing. Ages instead of times, because clocks of different machines never meet.
Legend: `_R` rank axis last; no suffix: one value per job.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagleray.errors import DataError
from eagleray.watchdog.telemetry import PHASES, RankRecord

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
Ints = NDArray[np.integer[Any]]

NO_PHASE = -1
PHASE_CODE: dict[str, int] = {phase: code for code, phase in enumerate(PHASES)}


def any_rank(holds_JR: Bools) -> Bools:
    """Jobs in which it holds for some rank."""
    return np.asarray(holds_JR.any(axis=1))


def all_ranks(holds_JR: Bools) -> Bools:
    """Jobs in which it holds for every rank."""
    return np.asarray(holds_JR.all(axis=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """What is known of all ranks in one second."""

    time_s: Floats
    """Of the newest record of a job."""
    step_R: Floats
    phase_R: Ints
    """Index into `PHASES`; `NO_PHASE`: missing."""
    beat_age_s_R: Floats
    step_age_s_R: Floats
    collectives_R: Floats
    waited_s_R: Floats
    data_s_R: Floats
    oom_count_R: Floats
    retry_count_R: Floats
    finished_R: Floats
    alive_R: Floats
    stopped_R: Floats
    rss_bytes_R: Floats
    used_bytes_R: Floats
    total_bytes_R: Floats
    utilisation_R: Floats
    power_w_R: Floats


_FIELD_OF_COLUMN = {
    "step_R": "step",
    "collectives_R": "collectives_entered",
    "waited_s_R": "waited_s",
    "data_s_R": "data_s",
    "oom_count_R": "oom_count",
    "retry_count_R": "alloc_retry_count",
    "finished_R": "finished",
    "alive_R": "process_alive",
    "stopped_R": "process_stopped",
    "rss_bytes_R": "host_rss_bytes",
    "used_bytes_R": "device_used_bytes",
    "total_bytes_R": "device_total_bytes",
    "utilisation_R": "utilisation_ratio",
    "power_w_R": "power_w",
}


def frame_of(records: Sequence[RankRecord], ranks: int) -> Frame:
    """Arrange one job's records by rank; ranks without one are missing altogether.

    Raises:
        DataError: There is no record, or one of a rank outside 0..ranks-1.
    """
    if not records or not all(0 <= record.rank < ranks for record in records):
        raise DataError(
            f"A second of telemetry has records of ranks {sorted(record.rank for record in records)}; "
            f"expected at least one, and all within 0..{ranks - 1}, of the job that is watched."
        )
    columns = {column: np.full(ranks, math.nan) for column in _FIELD_OF_COLUMN}
    phase_R = np.full(ranks, NO_PHASE, dtype=np.int8)
    beat_age_s_R, step_age_s_R = np.full(ranks, math.nan), np.full(ranks, math.nan)
    for record in records:
        for column, field in _FIELD_OF_COLUMN.items():
            value = getattr(record, field)
            if value is not None:
                columns[column][record.rank] = value
        if record.phase is not None:
            phase_R[record.rank] = PHASE_CODE[record.phase]
        if record.beat_time_s is not None:
            beat_age_s_R[record.rank] = record.time_s - record.beat_time_s
        if record.optimizer_step_time_s is not None:
            step_age_s_R[record.rank] = record.time_s - record.optimizer_step_time_s
    return Frame(
        time_s=np.asarray(max(record.time_s for record in records)),
        phase_R=phase_R,
        beat_age_s_R=beat_age_s_R,
        step_age_s_R=step_age_s_R,
        **columns,
    )


def batch_of(records: Sequence[RankRecord], ranks: int) -> Frame:
    """The frame of one job as a batch of one."""
    frame = frame_of(records, ranks)
    return Frame(**{field.name: getattr(frame, field.name)[None] for field in fields(Frame)})


def records_of(frame: Frame) -> tuple[RankRecord, ...]:
    """One job's frame as records: the inverse of `frame_of`."""
    time_s = float(frame.time_s)
    return tuple(_record(frame, time_s, rank) for rank in range(frame.phase_R.shape[-1]))


def _record(frame: Frame, time_s: float, rank: int) -> RankRecord:
    whole = {field.name for field in fields(RankRecord) if str(field.type).startswith("int")}
    flags = {"finished", "process_alive", "process_stopped"}
    known: dict[str, Any] = {}
    for column, field in _FIELD_OF_COLUMN.items():
        value = float(getattr(frame, column)[rank])
        if not math.isnan(value):
            known[field] = bool(value) if field in flags else int(value) if field in whole else value
    phase = int(frame.phase_R[rank])
    beat_age_s, step_age_s = float(frame.beat_age_s_R[rank]), float(frame.step_age_s_R[rank])
    return RankRecord(
        rank=rank,
        time_s=time_s,
        phase=None if phase == NO_PHASE else PHASES[phase],
        beat_time_s=None if math.isnan(beat_age_s) else time_s - beat_age_s,
        optimizer_step_time_s=None if math.isnan(step_age_s) else time_s - step_age_s,
        **known,
    )
