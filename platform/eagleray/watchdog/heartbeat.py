"""A rank's sign of life: one small file, mapped into memory, that outlives the rank.

The rank overwrites a fixed record at every change of phase, which costs a few microseconds and no system
call. Any process of the machine reads it at any time, also after the rank has died: the file stays, and with
it the phase the rank died in. Keep it on a file system in memory (`/dev/shm`), never on a network share.

Each section of the file has two copies, written in turn, and the number of writes, published last. So a rank
that dies or is stopped in the middle of a write leaves the copy before it whole. The loop writes one section;
a thread that watches the allocator, while the loop may hang, the other.
"""

import math
import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from eagleray.errors import ArtifactError
from eagleray.watchdog.telemetry import PHASES, Phase, RankRecord

SUFFIX = ".heartbeat"
READ_ATTEMPTS = 100
"""A look fails only when two writes happen during it."""

# Native sizes and alignment: only then does `struct` copy a number in one piece.
_WRITES = struct.Struct("@Q")
_IDENTITY = struct.Struct("@8sIIQ40s")
_PULSE = struct.Struct("@qqqqqdddd")
_ALLOCATOR = struct.Struct("@qqqq")
_PULSE_AT = _IDENTITY.size
_ALLOCATOR_AT = _PULSE_AT + _WRITES.size + 2 * _PULSE.size
FILE_BYTES = _ALLOCATOR_AT + _WRITES.size + 2 * _ALLOCATOR.size
MAGIC = b"EAGLEHB1"
_COLLECTIVE = PHASES.index("collective")
_DATA = PHASES.index("data")


class Heartbeat(Protocol):
    """What a training loop says of itself. Calls come from the loop's own thread."""

    def enter(self, phase: Phase) -> None:
        """The rank begins `phase`; what went before has ended."""
        ...

    def enter_collective(self) -> None:
        """The rank enters an exchange with all others."""
        ...

    def pulse(self) -> None:
        """The rank progresses inside a long phase."""
        ...

    def stepped(self, step: int) -> None:
        """`step` optimiser steps are done."""
        ...

    def count_oom(self) -> None:
        """An allocation failed."""
        ...

    def finish(self) -> None:
        """The rank has done all its work, or has failed and said so."""
        ...


class NoHeartbeat:
    """For runs that nobody watches."""

    def enter(self, phase: Phase) -> None:
        """Say nothing."""

    def enter_collective(self) -> None:
        """Say nothing."""

    def pulse(self) -> None:
        """Say nothing."""

    def stepped(self, step: int) -> None:
        """Say nothing."""

    def count_oom(self) -> None:
        """Say nothing."""

    def finish(self) -> None:
        """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """Where a rank runs."""

    rank: int
    pid: int
    started_s: float
    """When the process started, by the kernel's clock: a pid alone may have been given to another since."""
    device_uuid: str | None
    """NVML's name of its GPU; None without one."""


class HeartbeatFile:
    """Writes the heartbeat of this process. One writer per file; the folder must exist."""

    def __init__(self, folder: Path, rank: int, *, started_s: float, device_uuid: str | None = None):
        path = folder / f"{rank}{SUFFIX}"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, FILE_BYTES)
            self._map = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        self._pulse = _Section(self._map, _PULSE_AT, _PULSE)
        self._allocator = _Section(self._map, _ALLOCATOR_AT, _ALLOCATOR)
        self._step = 0
        self._phase = PHASES.index("init")
        self._finished = 0
        self._collectives = 0
        self._ooms = 0
        self._beat_s = time.monotonic()
        self._step_time_s = math.nan
        self._spent_s = [0.0] * len(PHASES)
        uuid = (device_uuid or "").encode()
        _IDENTITY.pack_into(self._map, 0, MAGIC, rank, os.getpid(), int(started_s * 1e3), uuid)
        self._write()

    def enter(self, phase: Phase) -> None:
        """Change the phase; time since the last sign of life is counted to the phase that ends."""
        self._tick()
        self._phase = PHASES.index(phase)
        self._write()

    def enter_collective(self) -> None:
        """Change the phase to `collective` and count the entry."""
        self._collectives += 1
        self.enter("collective")

    def pulse(self) -> None:
        """Show progress inside the phase."""
        self._tick()
        self._write()

    def stepped(self, step: int) -> None:
        """Note the end of an optimiser step."""
        self._step = step
        self._tick()
        self._step_time_s = self._beat_s
        self._write()

    def count_oom(self) -> None:
        """Count a failed allocation. Not a sign of life: what failed has not moved on."""
        self._ooms += 1
        self._write()

    def tell_allocator(self, *, ooms: int, retries: int, reserved_bytes: int, peak_bytes: int) -> None:
        """Take the device allocator's own counters. From one other thread."""
        self._allocator.write(ooms, retries, reserved_bytes, peak_bytes)

    def finish(self) -> None:
        """Say that nothing more is to come."""
        self._finished = 1
        self.pulse()

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._spent_s[self._phase] += now_s - self._beat_s
        self._beat_s = now_s

    def _write(self) -> None:
        self._pulse.write(
            self._step,
            self._phase,
            self._finished,
            self._collectives,
            self._ooms,
            self._beat_s,
            self._step_time_s,
            self._spent_s[_COLLECTIVE],
            self._spent_s[_DATA],
        )


class HeartbeatFolder:
    """Reads the heartbeats of one machine's ranks: a telemetry source."""

    def __init__(self, folder: Path):
        self._folder = folder

    def processes(self) -> tuple[RankProcess, ...]:
        """The ranks that have begun here, by rank.

        Raises:
            ArtifactError: A file is not a heartbeat of this version.
        """
        processes = []
        for path in self._paths():
            magic, rank, pid, started_ms, uuid = _IDENTITY.unpack_from(path.read_bytes())
            if magic != MAGIC:
                raise ArtifactError(
                    f"{path} begins with {magic!r}, not {MAGIC!r}: it was written by another version. "
                    "Delete the folder; every attempt writes it anew."
                )
            name = uuid.rstrip(b"\0").decode()
            processes.append(
                RankProcess(rank=rank, pid=pid, started_s=started_ms / 1e3, device_uuid=name or None)
            )
        return tuple(sorted(processes, key=lambda process: process.rank))

    def read(self, time_s: float) -> Sequence[RankRecord]:
        """What every rank last said of itself. A rank that has said nothing yet is left out."""
        records = (_decode(path, time_s) for path in self._paths())
        return [record for record in records if record is not None]

    def _paths(self) -> list[Path]:
        return [path for path in self._folder.glob(f"*{SUFFIX}") if path.stat().st_size == FILE_BYTES]


class _Section:
    """A part of the file, for one writer."""

    def __init__(self, content: mmap.mmap, offset: int, layout: struct.Struct):
        self._content = content
        self._offset = offset
        self._layout = layout
        self._writes = 0

    def write(self, *values: float) -> None:
        """Replace the section's values."""
        self._writes += 1
        self._layout.pack_into(self._content, _copy_at(self._offset, self._layout, self._writes), *values)
        _WRITES.pack_into(self._content, self._offset, self._writes)


def _copy_at(offset: int, layout: struct.Struct, writes: int) -> int:
    return offset + _WRITES.size + (writes % 2) * layout.size


def _read_section(path: Path, offset: int, layout: struct.Struct) -> tuple[float, ...] | None:
    """The values of a section; None when nothing was ever written there."""
    for _ in range(READ_ATTEMPTS):
        content = path.read_bytes()
        (writes,) = _WRITES.unpack_from(content, offset)
        if writes == 0:
            return None
        (writes_after,) = _WRITES.unpack_from(path.read_bytes(), offset)
        if writes_after == writes:
            return layout.unpack_from(content, _copy_at(offset, layout, writes))
    return None


def _decode(path: Path, time_s: float) -> RankRecord | None:
    pulse = _read_section(path, _PULSE_AT, _PULSE)
    if pulse is None:
        return None
    step, phase, finished, collectives, caught_ooms, beat_s, step_time_s, waited_s, data_s = pulse
    allocator = _read_section(path, _ALLOCATOR_AT, _ALLOCATOR)
    ooms, retries, reserved, peak = (0, None, None, None) if allocator is None else map(int, allocator)
    return RankRecord(
        rank=_IDENTITY.unpack_from(path.read_bytes())[1],
        time_s=time_s,
        step=int(step),
        phase=PHASES[int(phase)],
        beat_time_s=beat_s,
        optimizer_step_time_s=None if math.isnan(step_time_s) else step_time_s,
        collectives_entered=int(collectives),
        waited_s=waited_s,
        data_s=data_s,
        # The loop and the allocator may both count one failure; only that the sum rises has a meaning.
        oom_count=int(caught_ooms) + (ooms or 0),
        alloc_retry_count=retries,
        device_reserved_bytes=reserved,
        device_peak_bytes=peak,
        finished=bool(finished),
    )
