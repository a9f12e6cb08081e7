"""What the operating system knows of the ranks' processes."""

from collections.abc import Sequence

import psutil

from eagleray.watchdog.heartbeat import RankProcess
from eagleray.watchdog.telemetry import RankRecord

START_TOLERANCE_S = 1.5
"""Two readings of one process's start differ by clock ticks; a pid that was given away differs by more."""


class HostSource:
    """Memory, processor time and life of processes on this machine."""

    def __init__(self, processes: Sequence[RankProcess]):
        self._ranks = tuple(processes)
        self._handles: dict[int, psutil.Process] = {}
        self._cpu_s: dict[int, tuple[float, float]] = {}

    def read(self, time_s: float) -> Sequence[RankRecord]:
        """One record per rank; a process that may not be looked into has missing values."""
        return [self._read_one(process, time_s) for process in self._ranks]

    def _read_one(self, rank: RankProcess, time_s: float) -> RankRecord:
        try:
            handle = self._handles.get(rank.rank) or psutil.Process(rank.pid)
            if abs(handle.create_time() - rank.started_s) > START_TOLERANCE_S or not handle.is_running():
                return self._gone(rank, time_s)
            self._handles[rank.rank] = handle
            with handle.oneshot():
                status = handle.status()
                if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    return self._gone(rank, time_s)
                times = handle.cpu_times()
                return RankRecord(
                    rank=rank.rank,
                    time_s=time_s,
                    process_alive=True,
                    process_stopped=status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP),
                    host_rss_bytes=handle.memory_info().rss,
                    cpu_ratio=self._cpu_ratio(rank.rank, times.user + times.system, time_s),
                )
        except psutil.NoSuchProcess:
            return self._gone(rank, time_s)
        except psutil.AccessDenied:
            return RankRecord(rank=rank.rank, time_s=time_s)

    def _gone(self, rank: RankProcess, time_s: float) -> RankRecord:
        return RankRecord(rank=rank.rank, time_s=time_s, process_alive=False)

    def _cpu_ratio(self, rank: int, cpu_s: float, time_s: float) -> float | None:
        before = self._cpu_s.get(rank)
        self._cpu_s[rank] = (time_s, cpu_s)
        if before is None or time_s <= before[0]:
            return None
        return (cpu_s - before[1]) / (time_s - before[0])
