"""NVML on a real device."""

import time

import pytest

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
