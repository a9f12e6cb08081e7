"""Faults of one training rank, for processes that find this folder on PYTHONPATH.

`FAULT` names the fault, `FAULT_RANK` and `FAULT_STEP` say where, and `FAULT_MARK` is a file that the fault
leaves with its time, so that it happens once.
"""

import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

TARGET = "eagleray.training.loop"
HEADROOM_BYTES = 512 << 20
BLOCK_BYTES = 32 << 20


def run_out_of_memory() -> None:
    """Really fail an allocation, tell nobody, and never come back."""
    import torch

    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + HEADROOM_BYTES, resource.RLIM_INFINITY))
    held = []
    try:
        while True:
            held.append(torch.ones(BLOCK_BYTES, dtype=torch.uint8))
    except (RuntimeError, MemoryError):
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        sleep_for_ever()


def sleep_for_ever() -> None:
    while True:
        time.sleep(3600)


def stop_myself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


IN_FORWARD = {"oom": run_out_of_memory, "sleep": sleep_for_ever, "stop": stop_myself, "die": die}


class FaultyModule:
    """The module, with the fault in front of its forward."""

    def __init__(self, module: Any):
        self._module = module

    def __call__(self, batch: Any) -> Any:
        mark()
        IN_FORWARD[os.environ["FAULT"]]()
        return self._module(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class BlockedSource:
    """A feature source whose storage never answers."""

    phase = "data"

    def features(self, *_: Any) -> Any:
        mark()
        sleep_for_ever()


def mark() -> None:
    Path(os.environ["FAULT_MARK"]).write_text(str(time.time()))


def patch(module: ModuleType) -> None:
    """Let the chosen step of the chosen rank carry the fault."""
    import dataclasses

    accumulate = module.accumulate

    def faulty(job: Any, plan: Any, step: int) -> Any:
        here = module.dist.get_rank() == int(os.environ["FAULT_RANK"]) and step == int(
            os.environ["FAULT_STEP"]
        )
        if not here or Path(os.environ["FAULT_MARK"]).exists():
            return accumulate(job, plan, step)
        if os.environ["FAULT"] == "data":
            return accumulate(dataclasses.replace(job, source=BlockedSource()), plan, step)
        return accumulate(dataclasses.replace(job, module=FaultyModule(job.module)), plan, step)

    module.accumulate = faulty  # type: ignore[attr-defined]


class PatchingFinder(importlib.abc.MetaPathFinder):
    """Patches the training loop when it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != TARGET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "FAULT" in os.environ:
    sys.meta_path.insert(0, PatchingFinder())
