"""What NVML knows of the ranks' GPUs.

NVML answers each question on its own: a device may count energy and refuse its clocks, be lost in the middle
of a run, or keep a container from looking. Whatever it does not answer is missing in the record.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from eagleray.errors import ClusterError
from eagleray.watchdog.heartbeat import RankProcess
from eagleray.watchdog.telemetry import RankRecord

AnswerT = TypeVar("AnswerT")


def open_nvml() -> ModuleType | None:
    """NVML, started; None on a machine without an NVIDIA driver.

    Raises:
        ClusterError: There is a driver, and it does not start.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return None
    except pynvml.NVMLError as error:
        raise ClusterError(
            f"NVML does not start: {error}. Expected a working driver; look at `nvidia-smi` on this node, or "
            "train without the watchdog (training.watchdog.enabled=false)."
        ) from error
    return pynvml


class NvmlSource:
    """Memory, utilisation, power and clock events of the GPUs that ranks use on this machine."""

    def __init__(self, processes: Sequence[RankProcess], nvml: Any):
        self._nvml = nvml
        self._uuids = {process.rank: process.device_uuid for process in processes if process.device_uuid}
        self._energy: dict[int, tuple[float, int]] = {}

    def read(self, time_s: float) -> Sequence[RankRecord]:
        """One record per rank with a GPU."""
        return [self._read_one(rank, uuid, time_s) for rank, uuid in self._uuids.items()]

    def _read_one(self, rank: int, uuid: str, time_s: float) -> RankRecord:
        nvml = self._nvml
        # A handle of a lost device stays lost, so it is asked for anew every time.
        device = self._ask(nvml.nvmlDeviceGetHandleByUUID, uuid)
        if device is None:
            return RankRecord(rank=rank, time_s=time_s)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, device)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, device)
        return RankRecord(
            rank=rank,
            time_s=time_s,
            device_used_bytes=None if memory is None else int(memory.used),
            device_total_bytes=None if memory is None else int(memory.total),
            utilisation_ratio=None if rates is None else rates.gpu / 100,
            power_w=self._power_w(rank, device, time_s),
            clock_event_reasons=self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, device),
        )

    def _power_w(self, rank: int, device: Any, time_s: float) -> float | None:
        """Mean power since the last reading from the energy counter; else what the device says of now.

        The difference of energies is exact. `nvmlDeviceGetPowerUsage` is a mean over about a second since
        Ampere, so the instant field goes before it.
        """
        energy_mj = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption, device)
        if energy_mj is not None:
            before = self._energy.get(rank)
            self._energy[rank] = (time_s, energy_mj)
            # The counter starts again when the driver is loaded again.
            if before is None or energy_mj < before[1] or time_s <= before[0]:
                return None
            return (energy_mj - before[1]) / 1e3 / (time_s - before[0])
        fields = self._ask(
            self._nvml.nvmlDeviceGetFieldValues, device, [self._nvml.NVML_FI_DEV_POWER_INSTANT]
        )
        if fields is not None and fields[0].nvmlReturn == self._nvml.NVML_SUCCESS:
            return fields[0].value.uiVal / 1e3
        usage_mw = self._ask(self._nvml.nvmlDeviceGetPowerUsage, device)
        return None if usage_mw is None else usage_mw / 1e3

    def _ask(self, question: Callable[..., AnswerT], *arguments: Any) -> AnswerT | None:
        """The answer; None when this device does not give it, whatever the reason."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None
