"""What NVML knows of this machine's GPUs, and of those that ranks use.

NVML answers each question on its own: a device may count energy and refuse its clocks, be lost in the middle
of a run, or keep a container from looking. Whatever it does not answer is missing in the reading.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One GPU at one moment. None: it does not say."""

    used_bytes: int | None = None
    """Of all processes."""
    total_bytes: int | None = None
    utilisation_ratio: float | None = None
    """Share of the last moment (a sixth of a second to a second) in which any kernel ran, 0..1."""
    power_w: float | None = None
    """Mean since the reading before, where the device counts energy."""
    sm_clock_mhz: int | None = None
    clock_event_reasons: int | None = None
    """Why clocks are lower than they could be: NVML's bit mask."""


class GpuReader:
    """Reads GPUs by their UUIDs, and remembers what each had used of energy."""

    def __init__(self, nvml: Any):
        self._nvml = nvml
        self._energy: dict[str, tuple[float, int]] = {}

    def uuids(self) -> list[str]:
        """All GPUs of the machine that this process may look at, whoever uses them."""
        nvml = self._nvml
        handles = [
            self._ask(nvml.nvmlDeviceGetHandleByIndex, place)
            for place in range(self._ask(nvml.nvmlDeviceGetCount) or 0)
        ]
        answers = [self._ask(nvml.nvmlDeviceGetUUID, handle) for handle in handles if handle is not None]
        return [uuid for uuid in answers if uuid is not None]

    def read(self, uuid: str, time_s: float) -> GpuReading:
        """What the GPU says now; nothing of one that is lost.

        Args:
            time_s: Now, on a clock that does not jump.
        """
        nvml = self._nvml
        # A handle of a lost device stays lost, so it is asked for anew every time.
        device = self._ask(nvml.nvmlDeviceGetHandleByUUID, uuid)
        if device is None:
            return GpuReading()
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, device)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, device)
        return GpuReading(
            used_bytes=None if memory is None else int(memory.used),
            total_bytes=None if memory is None else int(memory.total),
            utilisation_ratio=None if rates is None else rates.gpu / 100,
            power_w=self._power_w(uuid, device, time_s),
            sm_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_SM),
            clock_event_reasons=self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, device),
        )

    def _power_w(self, uuid: str, device: Any, time_s: float) -> float | None:
        """Mean power since the last reading from the energy counter; else what the device says of now.

        The difference of energies is exact. `nvmlDeviceGetPowerUsage` is a mean over about a second since
        Ampere, so the instant field goes before it.
        """
        energy_mj = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption, device)
        if energy_mj is not None:
            before = self._energy.get(uuid)
            self._energy[uuid] = (time_s, energy_mj)
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


class NvmlSource:
    """Memory, utilisation, power and clock events of the GPUs that ranks use on this machine."""

    def __init__(self, processes: Sequence[RankProcess], nvml: Any):
        self._reader = GpuReader(nvml)
        self._uuids = {process.rank: process.device_uuid for process in processes if process.device_uuid}

    def read(self, time_s: float) -> Sequence[RankRecord]:
        """One record per rank with a GPU."""
        # Once per GPU: ranks that share one share its mean power too.
        gpus = {uuid: self._reader.read(uuid, time_s) for uuid in dict.fromkeys(self._uuids.values())}
        return [_record(rank, gpus[uuid], time_s) for rank, uuid in self._uuids.items()]


def _record(rank: int, gpu: GpuReading, time_s: float) -> RankRecord:
    return RankRecord(
        rank=rank,
        time_s=time_s,
        device_used_bytes=gpu.used_bytes,
        device_total_bytes=gpu.total_bytes,
        utilisation_ratio=gpu.utilisation_ratio,
        power_w=gpu.power_w,
        clock_event_reasons=gpu.clock_event_reasons,
    )
