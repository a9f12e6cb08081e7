"""NVML without a device: what it answers is set by the test."""

from types import SimpleNamespace
from typing import Any

import pynvml


class FakeNvml:
    """NVML with one device; answers in `codes` fail with the library's own errors."""

    NVMLError = pynvml.NVMLError
    NVML_SUCCESS = pynvml.NVML_SUCCESS
    NVML_FI_DEV_POWER_INSTANT = pynvml.NVML_FI_DEV_POWER_INSTANT
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM

    def __init__(self, **codes: int):
        self.codes = codes
        self.energy_mj = 1_000_000
        self.field = SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=SimpleNamespace(uiVal=310_000))

    def nvmlDeviceGetCount(self) -> int:
        return self._answer("count", 1)

    def nvmlDeviceGetHandleByIndex(self, place: int) -> str:
        return self._answer("handle", "device")

    def nvmlDeviceGetUUID(self, device: str) -> str:
        return self._answer("uuid", "GPU-0")

    def nvmlDeviceGetClockInfo(self, device: str, kind: int) -> int:
        assert kind == 1
        return self._answer("sm_clock", 1980)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert uuid == "GPU-0"
        return self._answer("handle", "device")

    def nvmlDeviceGetMemoryInfo(self, device: str) -> Any:
        return self._answer("memory", SimpleNamespace(total=80 << 30, used=60 << 30))

    def nvmlDeviceGetUtilizationRates(self, device: str) -> Any:
        return self._answer("rates", SimpleNamespace(gpu=98, memory=40))

    def nvmlDeviceGetTotalEnergyConsumption(self, device: str) -> int:
        return self._answer("energy", self.energy_mj)

    def nvmlDeviceGetFieldValues(self, device: str, fields: list[int]) -> Any:
        assert fields == [186]
        return self._answer("fields", [self.field])

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:
        return self._answer("usage", 290_000)

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: str) -> int:
        return self._answer("clocks", 0x4)

    def _answer(self, question: str, value: Any) -> Any:
        if code := self.codes.get(question):
            raise pynvml.NVMLError(code)
        return value
