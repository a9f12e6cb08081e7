"""Sequences that ranks cannot share evenly: no rank takes a step more than the others, and none waits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from eagleray.training.config import TrainingConfig
from eagleray.training.loop import TrainingJob, train
from eagleray.training.rows import TrainingRows
from tests.unit.training.ranks import as_rank

MakeJob = Callable[..., TrainingJob]
MakeSamples = Callable[..., Any]
SETTINGS = {"epochs": 2, "global_batch_size": 4, "micro_batch_size": 1, "workers": 4}


def _run_rank(rank: int, root: Path, make: MakeJob, samples: Any, held_out: Any) -> None:
    def work() -> None:
        job = make(root / "run", **SETTINGS)
        rows = TrainingRows(samples, TrainingConfig(**SETTINGS))
        replayed: list[str] = []
        source = NotedFeatures(job.source, replayed, {sample.sample_id for sample in held_out})
        state = train(replace(job, rows=rows, held_out=held_out, source=source))
        torch.save((state.step, len(job.reporter.metrics), replayed), root / f"{rank}.pt")

    as_rank(rank, 4, root, work)


class NotedFeatures:
    """Notes which held-out samples are asked for."""

    phase = "data"

    def __init__(self, source: Any, noted: list[str], held_out: set[str]):
        self._source = source
        self._noted = noted
        self._held_out = held_out

    def features(self, rows: Any, device: torch.device) -> Any:
        self._noted += [row.sample.sample_id for row in rows if row.sample.sample_id in self._held_out]
        return self._source.features(rows, device)


@pytest.mark.timeout(60)
def test_t1_ten_rows_on_four_ranks_are_two_steps_an_epoch_and_no_row_is_lost_to_the_trials(
    job_at: MakeJob, samples: MakeSamples, tmp_path: Path
) -> None:
    rows = samples(*[(2, 3)] * 10)
    held_out = [replace(each, sample_id=f"held-out-{n}") for n, each in enumerate(samples(*[(2, 4)] * 10))]
    mp.start_processes(_run_rank, args=(tmp_path, job_at, rows, held_out), nprocs=4, start_method="fork")
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(4)]
    assert [(steps, reported) for steps, reported, _ in found] == [(4, 4)] * 4
    assert sorted(set(found[0][2])) == sorted(sample.sample_id for sample in held_out)
