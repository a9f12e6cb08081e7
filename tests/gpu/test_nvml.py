"""NVML on a real device."""

import time

import pytest
import torch

from eagleray.evaluation.machine_load import measured_load
from eagleray.watchdog.heartbeat import RankProcess
from eagleray.watchdog.sources.nvml import NvmlSource, open_nvml

pytestmark = pytest.mark.gpu


def test_a_real_gpu_answers_with_plausible_numbers() -> None:
    nvml = open_nvml()
    assert nvml is not None
    uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))
    source = NvmlSource([RankProcess(rank=0, pid=1, started_s=0.0, device_uuid=uuid)], nvml)
    source.read(time.monotonic())
    time.sleep(1.0)
    (record,) = source.read(time.monotonic())
    assert record.power_w is not None
    assert 5 < record.power_w < 2000
    assert record.device_used_bytes is not None
    assert record.device_total_bytes is not None
    assert 0 < record.device_used_bytes <= record.device_total_bytes
    assert record.utilisation_ratio is not None
    assert 0 <= record.utilisation_ratio <= 1


def test_a_window_of_work_shows_the_gpu_at_work() -> None:
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    with measured_load() as window:
        until_s = time.monotonic() + 2.0
        while time.monotonic() < until_s:
            for _ in range(20):
                square @ square
            torch.cuda.synchronize()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    (gpu,) = [gpu for gpu in window.load.gpus if uuid in gpu.gpu]
    assert gpu.utilisation_after_ratio is not None
    assert gpu.utilisation_after_ratio > 0.5
    assert gpu.power_w is not None
    assert gpu.power_w > 50
    assert gpu.memory_used_after_bytes is not None
    assert gpu.memory_used_after_bytes > 2 * 8192 * 8192 * 2
    assert gpu.sm_clock_after_mhz is not None
    assert gpu.sm_clock_after_mhz > 100
