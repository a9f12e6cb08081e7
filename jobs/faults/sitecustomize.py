"""Faults of one training rank, for processes that find this folder on PYTHONPATH.

`FAULTS` is a list of names and steps in JSON, `FAULT_RANK` says which rank they strike, and `FAULT_MARKS` is
a folder in which each leaves the time that it struck, so that it does so once.
"""

import importlib.abc
import importlib.machinery
import json
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


def fail_to_allocate() -> None:
    """Take memory until there is none."""
    import torch

    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + HEADROOM_BYTES, resource.RLIM_INFINITY))
    held = []
    try:
        while True:
            held.append(torch.ones(BLOCK_BYTES, dtype=torch.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def run_out_of_memory() -> None:
    """Fail to allocate, tell nobody, and never come back."""
    try:
        fail_to_allocate()
    except (RuntimeError, MemoryError):
        # The error that is being handled keeps its frames, and they the memory.
        sleep_for_ever()


def sleep_for_ever() -> None:
    while True:
        time.sleep(3600)


def stop_myself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


IN_FORWARD = {
    "oom": run_out_of_memory,
    "raise": fail_to_allocate,
    "sleep": sleep_for_ever,
    "stop": stop_myself,
    "die": die,
}


class FaultyModule:
    """The module, with a fault in front of its forward."""

    def __init__(self, module: Any, fault: str, mark: Path):
        self._module = module
        self._fault = fault
        self._mark = mark

    def __call__(self, batch: Any) -> Any:
        strike(self._mark)
        IN_FORWARD[self._fault]()
        return self._module(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class FaultyBackend:
    """The backend, with that module in place of its own."""

    def __init__(self, backend: Any, fault: str, mark: Path):
        self._backend = backend
        self.module = FaultyModule(backend.module, fault, mark)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class BlockedSource:
    """A feature source whose storage never answers."""

    phase = "data"

    def __init__(self, mark: Path):
        self._mark = mark

    def features(self, *_: Any) -> Any:
        strike(self._mark)
        sleep_for_ever()


def strike(mark: Path) -> None:
    """Leave the time."""
    mark.write_text(str(time.monotonic()))


def due(rank: int, step: int) -> tuple[str, Path] | None:
    """The fault that strikes this rank in this step for the first time, and its mark."""
    if rank != int(os.environ["FAULT_RANK"]):
        return None
    for name, at in json.loads(os.environ["FAULTS"]):
        mark = Path(os.environ["FAULT_MARKS"]) / f"{name}-{at}"
        if at == step and not mark.exists():
            return name, mark
    return None


def patch(module: ModuleType) -> None:
    """Let the chosen steps of the chosen rank carry their faults."""
    import dataclasses

    accumulate = module.accumulate

    def faulty(job: Any, plan: Any, step: int) -> Any:
        found = due(module.dist.get_rank(), step)
        if found is None:
            return accumulate(job, plan, step)
        name, mark = found
        if name == "data":
            return accumulate(dataclasses.replace(job, source=BlockedSource(mark)), plan, step)
        backend = FaultyBackend(job.backend, name, mark)
        return accumulate(dataclasses.replace(job, backend=backend), plan, step)

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


if "FAULTS" in os.environ:
    sys.meta_path.insert(0, PatchingFinder())
