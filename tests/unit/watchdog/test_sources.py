"""Telemetry sources: what is known is right, what is not known is missing."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pynvml
import pytest

from eagleray.errors import DataError
from eagleray.watchdog.heartbeat import RankProcess
from eagleray.watchdog.sources.host import HostSource
from eagleray.watchdog.sources.nvml import GpuReader, GpuReading, NvmlSource, open_nvml
from eagleray.watchdog.sources.replay import ReplaySource, read_trace, write_trace
from eagleray.watchdog.telemetry import RankRecord, merge_records
from tests.unit.watchdog.fake_nvml import FakeNvml

GPU_RANK = RankProcess(rank=0, pid=1, started_s=0.0, device_uuid="GPU-0")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield child
    child.kill()
    child.wait()


def host_source(pid: int) -> HostSource:
    started_s = psutil.Process(pid).create_time()
    return HostSource([RankProcess(rank=0, pid=pid, started_s=started_s, device_uuid=None)])


def test_a_running_process_has_memory_and_from_the_second_look_on_processor_time() -> None:
    source = host_source(os.getpid())
    (first,) = source.read(10.0)
    deadline_s = time.process_time() + 0.2
    while time.process_time() < deadline_s:
        pass
    (second,) = source.read(10.5)
    assert first.process_alive is True
    assert first.process_stopped is False
    assert first.host_rss_bytes is not None
    assert first.host_rss_bytes > 2**20
    assert first.cpu_ratio is None
    assert second.cpu_ratio is not None
    assert second.cpu_ratio >= 0.3


def test_a_stopped_process_is_alive_and_stopped(sleeper: subprocess.Popen[bytes]) -> None:
    source = host_source(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    deadline_s = time.monotonic() + 10
    while not source.read(1.0)[0].process_stopped:
        assert time.monotonic() < deadline_s
    assert source.read(2.0)[0].process_alive is True


def test_a_dead_process_that_nobody_waited_for_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    source = host_source(sleeper.pid)
    source.read(0.0)
    sleeper.kill()
    deadline_s = time.monotonic() + 10
    while source.read(1.0)[0].process_alive:
        assert time.monotonic() < deadline_s
    sleeper.wait()
    (record,) = source.read(2.0)
    assert record.process_alive is False
    assert record.host_rss_bytes is None


def test_a_pid_that_was_given_to_another_process_is_dead() -> None:
    ranks = [RankProcess(rank=0, pid=os.getpid(), started_s=1.0, device_uuid=None)]
    assert HostSource(ranks).read(1.0)[0].process_alive is False


def test_power_is_the_difference_of_energies_over_time() -> None:
    nvml = FakeNvml()
    source = NvmlSource([GPU_RANK], nvml)
    assert source.read(100.0)[0].power_w is None
    nvml.energy_mj += 1_400_000
    (record,) = source.read(102.0)
    assert record.power_w == 700.0
    assert record.utilisation_ratio == 0.98
    assert record.device_used_bytes == 60 << 30
    assert record.device_total_bytes == 80 << 30
    assert record.clock_event_reasons == 4


def test_an_energy_counter_that_began_anew_gives_no_power_for_one_reading() -> None:
    nvml = FakeNvml()
    source = NvmlSource([GPU_RANK], nvml)
    source.read(1.0)
    nvml.energy_mj = 0
    assert source.read(2.0)[0].power_w is None
    nvml.energy_mj = 250_000
    assert source.read(3.0)[0].power_w == 250.0


def test_without_an_energy_counter_power_is_the_instant_field_then_the_mean() -> None:
    nvml = FakeNvml(energy=pynvml.NVML_ERROR_NOT_SUPPORTED)
    source = NvmlSource([GPU_RANK], nvml)
    assert source.read(1.0)[0].power_w == 310.0
    nvml.field.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert source.read(2.0)[0].power_w == 290.0
    nvml.codes["usage"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert source.read(3.0)[0].power_w is None


@pytest.mark.parametrize(
    "code",
    [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_NOT_SUPPORTED],
)
@pytest.mark.parametrize("question", ["memory", "rates", "clocks", "energy", "handle"])
def test_what_nvml_does_not_answer_is_missing_and_never_zero(question: str, code: int) -> None:
    nvml = FakeNvml(**{question: code}, fields=code, usage=code)
    source = NvmlSource([GPU_RANK], nvml)
    source.read(1.0)
    nvml.energy_mj += 500_000
    (record,) = source.read(2.0)
    lost = {
        "memory": {"device_used_bytes", "device_total_bytes"},
        "rates": {"utilisation_ratio"},
        "clocks": {"clock_event_reasons"},
        "energy": {"power_w"},
    }
    device_fields = set().union(*lost.values())
    missing = {name for name in device_fields if getattr(record, name) is None}
    assert missing == lost.get(question, device_fields)


def test_a_gpu_that_comes_back_is_read_again() -> None:
    nvml = FakeNvml(handle=pynvml.NVML_ERROR_GPU_IS_LOST)
    source = NvmlSource([GPU_RANK], nvml)
    assert source.read(1.0)[0].utilisation_ratio is None
    nvml.codes.clear()
    assert source.read(2.0)[0].utilisation_ratio == 0.98


def test_ranks_that_share_a_gpu_share_its_power() -> None:
    nvml = FakeNvml()
    source = NvmlSource([GPU_RANK, dataclasses.replace(GPU_RANK, rank=1)], nvml)
    source.read(1.0)
    nvml.energy_mj += 500_000
    assert [record.power_w for record in source.read(2.0)] == [500.0, 500.0]


def test_a_reader_finds_every_gpu_and_reads_its_clock() -> None:
    reader = GpuReader(FakeNvml())
    assert reader.uuids() == ["GPU-0"]
    assert reader.read("GPU-0", 1.0).sm_clock_mhz == 1980


@pytest.mark.parametrize("question", ["count", "handle", "uuid"])
def test_gpus_that_may_not_be_looked_at_are_none(question: str) -> None:
    nvml = FakeNvml(**{question: pynvml.NVML_ERROR_NO_PERMISSION})
    assert GpuReader(nvml).uuids() == []


def test_a_lost_gpu_says_nothing() -> None:
    nvml = FakeNvml(handle=pynvml.NVML_ERROR_GPU_IS_LOST)
    assert GpuReader(nvml).read("GPU-0", 1.0) == GpuReading()


def test_ranks_without_a_gpu_are_not_asked_for() -> None:
    assert NvmlSource([dataclasses.replace(GPU_RANK, device_uuid=None)], FakeNvml()).read(1.0) == []


def test_a_machine_without_a_driver_has_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert open_nvml() is None


def test_sources_are_merged_by_rank_and_missing_values_do_not_hide_known_ones() -> None:
    merged = merge_records(
        [
            RankRecord(rank=1, time_s=5.0, step=3),
            RankRecord(rank=0, time_s=5.0, power_w=None, process_alive=False),
            RankRecord(rank=0, time_s=5.0, power_w=0.0, process_alive=True),
        ]
    )
    assert merged == (
        RankRecord(rank=0, time_s=5.0, power_w=0.0, process_alive=False),
        RankRecord(rank=1, time_s=5.0, step=3),
    )


def test_a_recorded_trace_is_read_back_and_replayed(tmp_path: Path) -> None:
    seconds = [
        (RankRecord(rank=0, time_s=1.0, phase="data", power_w=0.0), RankRecord(rank=1, time_s=1.0)),
        (RankRecord(rank=0, time_s=2.0, finished=True),),
    ]
    write_trace(tmp_path / "trace.jsonl", seconds)
    assert read_trace(tmp_path / "trace.jsonl") == seconds
    replay = ReplaySource(seconds)
    assert [replay.read(0.0), replay.read(0.0), replay.read(0.0)] == [*seconds, ()]


def test_a_damaged_trace_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('[{"rank": 0, "time_s": 1}]\n[{"rank": 0, "watt": 3}]\n')
    with pytest.raises(DataError, match="line 2"):
        read_trace(tmp_path / "trace.jsonl")
