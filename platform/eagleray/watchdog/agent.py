"""The watchdog's hands on one machine: reads its ranks, asks for their stacks, ends them."""

import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from eagleray.watchdog.heartbeat import HeartbeatFolder, RankProcess
from eagleray.watchdog.sources.host import START_TOLERANCE_S, HostSource
from eagleray.watchdog.sources.nvml import NvmlSource, open_nvml
from eagleray.watchdog.stacks import collect_stacks, device_snapshot
from eagleray.watchdog.telemetry import RankRecord, TelemetrySource, merge_records

FLIGHT_RECORDER = "nccl_trace_rank_"
"""What `TORCH_FR_DUMP_TEMP_FILE` is set to, inside the folder; NCCL appends the rank."""


class NodeAgent:
    """Looks after the ranks whose heartbeats lie in one folder of this machine."""

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
        kept = {path.name: path.read_bytes() for path in self._folder.glob(f"{FLIGHT_RECORDER}*")}
        snapshot = device_snapshot()
        if snapshot is not None:
            kept[f"nvidia-smi-{os.uname().nodename}.txt"] = snapshot.encode()
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

    def clear(self) -> None:
        """Remove the heartbeats of this attempt."""
        shutil.rmtree(self._folder, ignore_errors=True)
