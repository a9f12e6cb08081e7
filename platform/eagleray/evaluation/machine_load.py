"""What else a machine did while something was measured on it: host and GPUs, before, during and after.

Nothing is sampled within a window, as that would take part in what is measured: a window costs one look
before and one behind it.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import psutil

from eagleray.errors import ClusterError
from eagleray.settings import Settings
from eagleray.watchdog.sources.nvml import GpuReader, GpuReading, open_nvml

SHORTEST_S = 0.5
"""Processors are accounted in ticks of 10 ms: of shorter windows no share is told."""

logger = logging.getLogger(__name__)


class GpuLoad(Settings):
    """One GPU around one window. None: it does not say."""

    gpu: str
    """NVML's UUID."""
    utilisation_before_ratio: float | None
    """Share of the moment before in which any kernel ran, 0..1."""
    utilisation_after_ratio: float | None
    power_w: float | None
    """Mean over the window where the device counts energy, else what it drew at its end."""
    memory_used_before_bytes: int | None
    """Of all processes."""
    memory_used_after_bytes: int | None
    sm_clock_before_mhz: int | None
    sm_clock_after_mhz: int | None


class WindowLoad(Settings):
    """The machine of the measuring process around one window."""

    wall_s: float
    load_average_before: float
    """Processes that wanted a core, mean over a minute, everything on the machine counted."""
    load_average_after: float
    cpu_ratio: float | None
    """Share of all cores' time that was used, 0..1. None: the window was too short to tell."""
    own_cpu_ratio: float | None
    """What of that this process and its children used."""
    gpus: tuple[GpuLoad, ...] = ()
    """All of the machine that may be looked at."""

    @property
    def other_cpu_ratio(self) -> float | None:
        """What of all cores' time other processes used."""
        if self.cpu_ratio is None or self.own_cpu_ratio is None:
            return None
        return max(0.0, self.cpu_ratio - self.own_cpu_ratio)


class LoadWindow:
    """A window that is open, and what was measured when it is closed."""

    def __init__(self, gpus: GpuReader | None):
        self._gpus = gpus
        self._load: WindowLoad | None = None
        self._before = _look(gpus)

    @property
    def load(self) -> WindowLoad:
        """Of the closed window."""
        assert self._load is not None, "the window is still open"
        return self._load

    def close(self) -> None:
        """Look again."""
        self._load = _between(self._before, _look(self._gpus))


@contextmanager
def measured_load(gpus: GpuReader | None = None) -> Iterator[LoadWindow]:
    """Look at the machine before and after what is enclosed.

    Args:
        gpus: None: those of this machine, if it has any.
    """
    window = LoadWindow(_machine_gpus() if gpus is None else gpus)
    yield window
    window.close()


@cache
def _machine_gpus() -> GpuReader | None:
    try:
        nvml = open_nvml()
    except ClusterError as error:
        logger.warning("Measurements tell nothing of the GPUs' load. %s", error)
        return None
    return None if nvml is None else GpuReader(nvml)


@dataclass(frozen=True)
class _Look:
    time_s: float
    load_average: float
    busy_s: float
    own_s: float
    gpus: dict[str, GpuReading]


def _look(gpus: GpuReader | None) -> _Look:
    now_s = time.monotonic()
    everyone = psutil.cpu_times()
    # Idle and waiting for a disk are no work; a guest's time is counted in user's already.
    idle_s = everyone.idle + getattr(everyone, "iowait", 0.0)
    counted_twice_s = getattr(everyone, "guest", 0.0) + getattr(everyone, "guest_nice", 0.0)
    return _Look(
        time_s=now_s,
        load_average=psutil.getloadavg()[0],
        busy_s=sum(everyone) - idle_s - counted_twice_s,
        own_s=_own_s(),
        gpus={uuid: gpus.read(uuid, now_s) for uuid in gpus.uuids()} if gpus else {},
    )


def _own_s() -> float:
    """Processor seconds of this process, and of its children, ended ones included."""
    process = psutil.Process()
    own = process.cpu_times()
    seconds = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
            seconds += times.user + times.system
        except psutil.Error:
            continue
    return float(seconds)


def _between(before: _Look, after: _Look) -> WindowLoad:
    wall_s = after.time_s - before.time_s
    cores_s = wall_s * (psutil.cpu_count() or 1)
    tells = wall_s >= SHORTEST_S

    def share(used_s: float) -> float | None:
        return min(1.0, max(0.0, used_s / cores_s)) if tells else None

    return WindowLoad(
        wall_s=wall_s,
        load_average_before=before.load_average,
        load_average_after=after.load_average,
        cpu_ratio=share(after.busy_s - before.busy_s),
        own_cpu_ratio=share(after.own_s - before.own_s),
        gpus=tuple(
            _gpu_load(uuid, before.gpus.get(uuid, GpuReading()), reading)
            for uuid, reading in after.gpus.items()
        ),
    )


def _gpu_load(uuid: str, before: GpuReading, after: GpuReading) -> GpuLoad:
    return GpuLoad(
        gpu=uuid,
        utilisation_before_ratio=before.utilisation_ratio,
        utilisation_after_ratio=after.utilisation_ratio,
        power_w=after.power_w,
        memory_used_before_bytes=before.used_bytes,
        memory_used_after_bytes=after.used_bytes,
        sm_clock_before_mhz=before.sm_clock_mhz,
        sm_clock_after_mhz=after.sm_clock_mhz,
    )
