"""What is known of one rank in one second.

A value that was not measured is None, never 0: in the field whole nodes reported nulls for forty minutes
while they trained (marin #8870), and a watchdog that read them as zeros would have stopped the run.
Times are of the monotonic clock of the rank's machine, which all processes there share and no time server
moves. Only differences within one record are compared, so clocks of different machines never meet.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol, get_args

Phase = Literal[
    "init",
    "compile",
    "data",
    "target",
    "forward",
    "backward",
    "collective",
    "optimizer",
    "checkpoint",
    "evaluate",
]
"""What a rank is doing: starting up, compiling, waiting for data, running the target, the drafter forward
and backward, inside an exchange with the other ranks, updating weights, writing a checkpoint, evaluating."""

PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """One rank in one second. None: not known."""

    rank: int
    time_s: float
    """When this was read."""

    # The rank's own word, through its heartbeat.
    step: int | None = None
    """Optimiser steps done."""
    phase: Phase | None = None
    beat_time_s: float | None = None
    """Last sign of life: a change of phase, or progress inside one."""
    optimizer_step_time_s: float | None = None
    """End of the last optimiser step; None before the first."""
    collectives_entered: int | None = None
    """Exchanges that this rank has entered. A rank with fewer than its peers is the one they wait for."""
    waited_s: float | None = None
    """Seconds spent inside exchanges so far."""
    data_s: float | None = None
    """Seconds spent waiting for data so far."""
    oom_count: int | None = None
    """Allocations that failed."""
    alloc_retry_count: int | None = None
    """Times the allocator emptied its cache and tried again."""
    device_reserved_bytes: int | None = None
    """Held by the rank's allocator."""
    device_peak_bytes: int | None = None
    """Largest amount that the rank's tensors ever took."""
    finished: bool | None = None
    """The rank has done all its work, or failed, and said so; nothing is expected of it any more."""

    # The machine's word on the process.
    process_alive: bool | None = None
    process_stopped: bool | None = None
    """Held by a signal or a debugger: alive, but unable to move."""
    host_rss_bytes: int | None = None
    cpu_ratio: float | None = None
    """Processor time over wall time since the record before; above 1 with several threads."""

    # The machine's word on the device.
    device_used_bytes: int | None = None
    device_total_bytes: int | None = None
    utilisation_ratio: float | None = None
    """Share of the time in which any kernel ran, 0..1. A rank that spins in an exchange shows 1."""
    power_w: float | None = None
    """Mean since the record before, where the device counts energy."""
    clock_event_reasons: int | None = None
    """Why clocks are lower than they could be: NVML's bit mask."""


class TelemetrySource(Protocol):
    """Something that knows a part of what a record holds."""

    def read(self, time_s: float) -> Sequence[RankRecord]:
        """One record per rank that this source knows, with only the fields that it knows."""
        ...


def merge_records(records: Iterable[RankRecord]) -> tuple[RankRecord, ...]:
    """Put the records of several sources together by rank; the first known value of a field is kept."""
    merged: dict[int, dict[str, object]] = {}
    for record in records:
        known = merged.setdefault(record.rank, {})
        for field in fields(record):
            value = getattr(record, field.name)
            if value is not None:
                known.setdefault(field.name, value)
    return tuple(RankRecord(**merged[rank]) for rank in sorted(merged))  # type: ignore[arg-type]
