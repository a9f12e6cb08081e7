"""Whatever the backend and however many ranks, a run learns the same; and may change both on its way."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.multiprocessing as mp

from eagleray.training.backends import fsdp, zero
from eagleray.training.config import TrainingConfig
from eagleray.training.loop import TrainingJob, train
from tests.unit.training.ranks import as_rank

FORKED_WITH = (fsdp, zero)
"""Imported here, once, and not in each of the processes."""

MakeJob = Callable[..., TrainingJob]

COMMON = {
    "epochs": 2,
    "global_batch_size": 4,
    "micro_batch_size": 1,
    "max_steps": 4,
    "grad_clip": 0.5,
    "held_out": 4,
    "replay_every_steps": 2,
}
ZERO = {"optimizer": "adamw", "backend": "deepspeed"}
TOLERANCE = {"atol": 2e-6, "rtol": 1e-5}
"""Sums of gradients in another order differ by rounding, which a few steps of AdamW or Muon pass on."""


class SeenReporter:
    """Stops after some steps, and remembers figures."""

    def __init__(self, stop_after: int | None) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []
        self._stop_after = stop_after

    def report(self, metrics: dict[str, float]) -> None:
        self.losses.append(metrics["loss"])
        self.norms.append(metrics["grad_norm"])

    def save(self, checkpoint: Path | None) -> None:
        pass

    def should_stop(self) -> bool:
        return self._stop_after is not None and len(self.losses) + 1 >= self._stop_after


class SeenFeatures:
    """Notes of which rows of the training features are asked for."""

    phase = "data"

    def __init__(self, job: TrainingJob) -> None:
        self._source = job.source
        self._rows = job.rows
        self.samples: list[str] = []

    def features(self, rows: Any, device: torch.device) -> Any:
        self.samples += [row.sample.sample_id for row in rows if row in self._rows]
        return self._source.features(rows, device)


class Phase(NamedTuple):
    """One start of a run."""

    name: str
    settings: dict[str, Any]
    folder: str = ""
    """Shared by phases of one run; the name if empty."""
    stop_after: int | None = None


TOGETHER = [
    Phase("ddp-muon", {"optimizer": "muon"}),
    Phase("ddp-adamw", {"optimizer": "adamw"}),
    Phase("ddp-first", {"optimizer": "muon"}, "ddp-resumed", 2),
    Phase("ddp-second", {"optimizer": "muon"}, "ddp-resumed"),
    Phase("fsdp-muon", {"backend": "fsdp", "optimizer": "muon"}),
    Phase("fsdp-adamw", {"backend": "fsdp", "optimizer": "adamw"}),
    Phase("zero1", ZERO | {"zero": {"stage": 1}}),
    Phase("zero2", ZERO | {"zero": {"stage": 2}}),
    Phase("zero3", ZERO | {"zero": {"stage": 3}}),
    Phase("offload", ZERO | {"zero": {"stage": 2, "offload": True}}),
    Phase("fsdp-packed", {"backend": "fsdp", "optimizer": "adamw", "pack": True, "max_length": 16}),
    Phase("zero3-packed", ZERO | {"zero": {"stage": 3}, "pack": True, "max_length": 16}),
    Phase("fsdp-first", {"backend": "fsdp"}, "fsdp", 2),
    Phase("fsdp-second", {"backend": "fsdp"}, "fsdp"),
    Phase("zero2-first", ZERO | {"zero": {"stage": 2}}, "zero2-resumed", 2),
    Phase("zero2-second", ZERO | {"zero": {"stage": 2}}, "zero2-resumed"),
    Phase("moving-1", {"backend": "fsdp", "optimizer": "adamw"}, "moving", 1),
]
ALONE = [
    Phase("muon", {"optimizer": "muon"}),
    Phase("adamw", {"optimizer": "adamw"}),
    Phase("at-once", {"optimizer": "adamw", "micro_batch_size": 4}),
    Phase("packed", {"optimizer": "adamw", "pack": True, "max_length": 16}),
    Phase("moving-2", {"optimizer": "adamw"}, "moving", 1),
]
TOGETHER_AGAIN = [
    Phase("moving-3", ZERO | {"zero": {"stage": 3}}, "moving", 1),
    Phase("moving-4", ZERO | {"zero": {"stage": 1}}, "moving"),
]


def run_phase(phase: Phase, ranks: int, root: Path, make: MakeJob) -> dict[str, Any]:
    reporter = SeenReporter(phase.stop_after)
    settings = {**COMMON, **phase.settings}
    job = make(root / (phase.folder or phase.name), reporter, workers=ranks, **settings)
    seen = SeenFeatures(job)
    state = train(replace(job, source=seen))
    return {
        "tau": state.best_replay_tau,
        "weights": job.backend.weights(),
        "losses": reporter.losses,
        "norms": reporter.norms,
        "samples": seen.samples,
    }


def _run_rank(rank: int, root: Path, phases: list[Phase], make: MakeJob) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}

    def work() -> None:
        torch.save({phase.name: run_phase(phase, 2, root, make) for phase in phases}, root / f"{rank}.pt")

    as_rank(rank, 2, root, work)


def run_on_two(phases: list[Phase], root: Path, make: MakeJob) -> dict[str, Any]:
    """What rank 0 found in each phase, and the samples of both."""
    (root / "rendezvous").unlink(missing_ok=True)
    mp.start_processes(_run_rank, args=(root, phases, make), nprocs=2, start_method="fork")
    first, second = (torch.load(root / f"{rank}.pt") for rank in range(2))
    return {
        name: found | {"samples": found["samples"] + second[name]["samples"]} for name, found in first.items()
    }


@pytest.fixture(scope="module")
def found(job_at: MakeJob, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All phases, by name."""
    root = tmp_path_factory.mktemp("backends")
    together = run_on_two(TOGETHER, root, job_at)
    alone = {phase.name: run_phase(phase, 1, root, job_at) for phase in ALONE}
    return together | alone | run_on_two(TOGETHER_AGAIN, root, job_at)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["losses"] == pytest.approx(other["losses"], rel=1e-5)
    assert one["tau"] == other["tau"] >= 1
    assert one["norms"] == pytest.approx(other["norms"], rel=1e-4)
    for name, tensor in one["weights"].items():
        torch.testing.assert_close(tensor, other["weights"][name], **TOLERANCE)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("backend", "alone"),
    [
        ("ddp-muon", "muon"),
        ("ddp-adamw", "adamw"),
        ("fsdp-muon", "muon"),
        ("fsdp-adamw", "adamw"),
        ("zero1", "adamw"),
        ("zero2", "adamw"),
        ("zero3", "adamw"),
        ("offload", "adamw"),
        ("fsdp-packed", "adamw"),
        ("zero3-packed", "adamw"),
    ],
)
def test_two_ranks_of_a_backend_learn_what_one_rank_learns(
    found: dict[str, Any], backend: str, alone: str
) -> None:
    assert_same(found[alone], found[backend])
    assert sorted(found[alone]["samples"]) == sorted(found[backend]["samples"])


def test_accumulated_micro_batches_are_the_step_of_one(found: dict[str, Any]) -> None:
    assert_same(found["at-once"], found["adamw"])


def test_short_samples_that_share_rows_are_the_step_of_samples_apart(found: dict[str, Any]) -> None:
    assert_same(found["packed"], found["adamw"])


def test_a_run_goes_on_at_other_world_sizes_and_backends_and_sees_every_sample_once(
    found: dict[str, Any],
) -> None:
    parts = [found[f"moving-{number}"] for number in range(1, 5)]

    def joined(what: str) -> list[Any]:
        return [value for part in parts for value in part[what]]

    assert sorted(joined("samples")) == sorted(found["adamw"]["samples"])
    assert len(joined("losses")) == COMMON["max_steps"]
    assert_same(found["adamw"], parts[-1] | {"losses": joined("losses"), "norms": joined("norms")})


@pytest.mark.parametrize(
    ("straight", "resumed"),
    [("ddp-muon", "ddp"), ("fsdp-muon", "fsdp"), ("zero2", "zero2")],
    ids=["ddp", "fsdp", "deepspeed"],
)
def test_resumed_on_as_many_ranks_is_straight_bit_for_bit(
    found: dict[str, Any], straight: str, resumed: str
) -> None:
    first, second = found[f"{resumed}-first"], found[f"{resumed}-second"]
    assert len(first["losses"]) == len(second["losses"]) == 2
    assert found[straight]["losses"] == first["losses"] + second["losses"]
    for name, tensor in found[straight]["weights"].items():
        assert torch.equal(tensor, second["weights"][name]), name


def test_deepspeed_with_muon_is_refused_with_what_to_set() -> None:
    with pytest.raises(ValueError, match="set optimizer to adamw"):
        TrainingConfig(backend="deepspeed", optimizer="muon")
