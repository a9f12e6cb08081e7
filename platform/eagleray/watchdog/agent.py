"""The watchdog's hands on one machine: reads its ranks, asks for their stacks, ends them."""

import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from eagleray.watchdog.heartbeat import HeartbeatFolder, RankProcess
from eagleray.watchdog.snapshots import device_snapshot, flight_files, flight_records, ras_report
from eagleray.watchdog.sources.host import START_TOLERANCE_S, HostSource
from eagleray.watchdog.sources.nvml import NvmlSource, open_nvml
from eagleray.watchdog.stacks import collect_stacks
from eagleray.watchdog.telemetry import RankRecord, TelemetrySource, merge_records


class NodeAgent:
    """Looks after the ranks whose heartbeats lie in one folder of this machine.

    Args:
        folder: `<run>-<attempt>`; beside it lie those of other attempts, if any were left.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._heartbeats = HeartbeatFolder(folder)
        self._nvml = open_nvml()
        self._processes: tuple[RankProcess, ...] = ()
        self._sources: list[TelemetrySource] = []

    def look(self) -> tuple[RankRecord, ...]:
        """What is known now of every rank of this machine."""
        processes = self._heartbeats.processes()
        if processes != self._processes:
            self._processes = processes
            self._sources = [self._heartbeats, HostSource(processes)]
            if self._nvml is not None:
                self._sources.append(NvmlSource(processes, self._nvml))
        time_s = time.monotonic()
        return merge_records(record for source in self._sources for record in source.read(time_s))

    def stacks(self) -> dict[int, str]:
        """Where every rank of this machine stands."""
        return collect_stacks(self._processes, self._folder)

    def attachments(self) -> Mapping[str, bytes]:
        """What else there is to keep of this moment, by file name."""
        kept = flight_records(self._folder)
        for name, said in (("nvidia-smi", device_snapshot()), ("ncclras", ras_report())):
            if said is not None:
                kept[f"{name}-{os.uname().nodename}.txt"] = said.encode()
        return kept

    def end_ranks(self) -> list[int]:
        """Kill every rank of this machine, also one that is stopped; returns those that were alive."""
        ended = []
        for process in self._heartbeats.processes():
            try:
                handle = psutil.Process(process.pid)
                if abs(handle.create_time() - process.started_s) <= START_TOLERANCE_S:
                    handle.send_signal(signal.SIGKILL)
                    ended.append(process.rank)
            except psutil.NoSuchProcess:
                continue
        return ended

    def forget_others(self) -> None:
        """Remove what earlier attempts of this run left here because their driver was killed."""
        run, _, _ = self._folder.name.rpartition("-")
        for path in self._folder.parent.glob(f"{run}-*"):
            if not path.name.startswith(self._folder.name):
                _remove(path)

    def clear(self) -> None:
        """Remove the heartbeats and flight records of this attempt."""
        for path in [self._folder, *flight_files(self._folder)]:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
