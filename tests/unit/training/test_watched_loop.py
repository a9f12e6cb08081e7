"""What the loop says of itself, and that saying it changes nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from eagleray.training.exchanges import announce_exchanges
from eagleray.training.loop import TrainingJob, train
from eagleray.watchdog.heartbeat import NoHeartbeat
from eagleray.watchdog.telemetry import Phase
from tests.unit.training.ranks import as_rank

MakeJob = Callable[..., TrainingJob]


class Diary(NoHeartbeat):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def enter(self, phase: Phase) -> None:
        self.entries.append(phase)

    def enter_collective(self) -> None:
        self.entries.append("collective")

    def stepped(self, step: int) -> None:
        self.entries.append(f"step {step}")


def test_a_step_is_told_phase_by_phase(job: MakeJob) -> None:
    diary = Diary()
    settings = {"epochs": 1, "global_batch_size": 4, "micro_batch_size": 2, "checkpoint_every_steps": 100}
    train(replace(job(**settings), heartbeat=diary))
    micro_batch = ["data", "forward", "backward"]
    assert diary.entries[: diary.entries.index("step 1") + 1] == [
        *micro_batch,
        *micro_batch,
        "collective",
        "optimizer",
        "step 1",
    ]
    assert diary.entries[-1] == "checkpoint"


def _train_announced(rank: int, root: Path, announce: bool, settings: dict[str, Any], make: MakeJob) -> None:
    def work() -> None:
        job = make(root / "run", **settings)
        diary = Diary()
        job.backend.module = DistributedDataParallel(job.backend.drafter)
        if announce:
            announce_exchanges(job.backend.module, diary)
        train(replace(job, heartbeat=diary))
        if rank == 0:
            torch.save((job.backend.weights(), diary.entries), root / "result.pt")

    as_rank(rank, 3, root, work)


@pytest.mark.timeout(120)
def test_announcing_exchanges_changes_no_bit_of_what_three_ranks_learn(
    job_at: MakeJob, tmp_path: Path
) -> None:
    """Three, because a third is no power of two: dividing by it is not multiplying by its inverse."""
    settings = {"epochs": 2, "global_batch_size": 6, "micro_batch_size": 1, "workers": 3}
    results = []
    for announce in (False, True):
        root = tmp_path / str(announce)
        root.mkdir()
        mp.start_processes(
            _train_announced, args=(root, announce, settings, job_at), nprocs=3, start_method="fork"
        )
        results.append(torch.load(root / "result.pt"))
    (plain, silent), (announced, told) = results
    for name, tensor in plain.items():
        assert torch.equal(tensor, announced[name]), name
    # The gradients of a step, then its totals.
    assert told.count("collective") == 2 * silent.count("collective")
    before_the_first = told[: told.index("collective")]
    assert before_the_first[-1] == "backward"
