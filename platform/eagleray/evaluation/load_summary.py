"""Whether a machine was busy with something else: the windows of a report, summed up."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from eagleray.evaluation.machine_load import GpuLoad, WindowLoad

OTHERS_RATIO = 0.1
"""Share of all cores' time that others may use before a report says so."""


def summarise_load(
    windows: Sequence[WindowLoad], *, expected_ratio: float | None = 0.0
) -> dict[str, Any] | None:
    """Return the section `machine_load` of a report; None where nobody looked.

    Args:
        expected_ratio: Share of all cores' time that others use by design, as other measuring processes.
            None: what is measured runs in other processes, so of others nothing can be said.
    """
    if not windows:
        return None
    told = [window for window in windows if window.cpu_ratio is not None]
    others = [window.other_cpu_ratio or 0.0 for window in told]
    by_gpu: dict[str, list[GpuLoad]] = {}
    for window in windows:
        for gpu in window.gpus:
            by_gpu.setdefault(gpu.gpu, []).append(gpu)
    return {
        "windows": len(windows),
        "wall_s": sum(window.wall_s for window in windows),
        "load_average_before": _range(window.load_average_before for window in windows),
        "load_average_after": _range(window.load_average_after for window in windows),
        "cpu_ratio": _range(window.cpu_ratio for window in windows),
        "other_cpu_ratio": None if expected_ratio is None else _range(others),
        "gpus": {uuid: _gpu(loads) for uuid, loads in by_gpu.items()},
        "hint": None if expected_ratio is None else _hint(others, expected_ratio),
    }


def _hint(others: Sequence[float], expected_ratio: float) -> str | None:
    """What to do about a busy machine; None where it was not."""
    busy = [ratio for ratio in others if ratio > expected_ratio + OTHERS_RATIO]
    if not busy:
        return None
    expected = f", {expected_ratio:.0%} of them by design" if expected_ratio else ""
    return (
        f"other processes used more than {OTHERS_RATIO:.0%} of the CPUs in {len(busy)} of {len(others)} "
        f"windows, at most {max(busy):.0%}{expected}: measure again on an idle machine before you trust "
        "tokens per second"
    )


def _gpu(loads: Sequence[GpuLoad]) -> dict[str, Any]:
    return {
        "utilisation_before_ratio": _range(load.utilisation_before_ratio for load in loads),
        "utilisation_after_ratio": _range(load.utilisation_after_ratio for load in loads),
        "power_w": _range(load.power_w for load in loads),
        "memory_used_bytes": _range(
            used for load in loads for used in (load.memory_used_before_bytes, load.memory_used_after_bytes)
        ),
        "sm_clock_mhz": _range(
            clock for load in loads for clock in (load.sm_clock_before_mhz, load.sm_clock_after_mhz)
        ),
    }


def _range(values: Iterable[float | None]) -> dict[str, float] | None:
    """Least, middle and most of what is known; None of nothing."""
    known = [value for value in values if value is not None]
    return {"low": min(known), "median": median(known), "high": max(known)} if known else None
