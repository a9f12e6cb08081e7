"""The regime: everything that a measured number depends on. A number without one is not stored."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from eagleray.corpus.chat import RenderedPrompt
from eagleray.errors import DataError
from eagleray.settings import Settings, fingerprint
from eagleray.targets.linear import kernel_name


class Machine(Settings):
    """The hardware and software under an engine."""

    cpu_model: str
    cores: int
    """Logical cores of the machine, not only those this process may use."""
    threads: int
    """Threads that one tensor operation uses in the measuring process."""
    accelerator: str
    """Model and count of the GPUs in use, or `none`."""
    torch_version: str
    kernels: str
    """What multiplies float32 weights in the native engine here: `panels`, `onednn` or `torch`."""


class Regime(Settings):
    """Two numbers may be compared only when their regimes are equal."""

    machine: Machine
    workers: int
    """Processes that measured at the same time on the machine."""
    engine: str
    engine_version: str
    engine_settings: dict[str, Any]
    """What the engine was configured with."""
    dtype: str
    target_hash: str
    drafter_hashes: dict[str, str]
    """By label; a drafter without weights has the hash of its settings."""
    template_hash: str
    workload_hash: str
    sampling: str = "greedy"
    acceptance_concurrency: int
    """Sequences decoded together where acceptance is measured."""
    timing_concurrency: int = 1
    """Sequences decoded together where speed is measured."""
    max_new_tokens: int
    timing_new_tokens: int

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that name the regime."""
        return fingerprint(self)


def describe_machine() -> Machine:
    """Read the machine that this process runs on."""
    accelerator = "none"
    if torch.cuda.is_available():
        accelerator = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return Machine(
        cpu_model=_cpu_model(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        accelerator=accelerator,
        torch_version=torch.__version__,
        kernels=kernel_name(torch.empty(0)),
    )


def workload_hash(prompts: Mapping[str, Sequence[RenderedPrompt]]) -> str:
    """Hash of the ids that the target reads, by family and in order."""
    return fingerprint(
        {family: [list(item.prompt_ids) for item in items] for family, items in prompts.items()}
    )


def require_one_regime(expected: Regime, seen: Iterable[tuple[str, Regime]]) -> None:
    """Check that every named measurement was made in the expected regime.

    Raises:
        DataError: One was not; the message names it and the fields that differ.
    """
    for name, regime in seen:
        differing = [
            f"{field} was {getattr(regime, field)!r}, expected {getattr(expected, field)!r}"
            for field in Regime.model_fields
            if getattr(regime, field) != getattr(expected, field)
        ]
        if differing:
            raise DataError(
                f"Measurement {name} was made in another regime: {'; '.join(differing)}. Numbers of "
                "different regimes are not put into one report: measure again with --redo evaluate."
            )


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
