"""A training cut into rungs is the training that was never cut."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagleray.training import budget, rungs
from eagleray.training.budget import train_on_budget
from eagleray.training.loop import TrainingJob
from eagleray.training.rungs import RungJob, train_rung

MakeJob = Callable[..., TrainingJob]
ENDS_S = (1.0, 3.0, 9.0)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes a second."""
    ticks = itertools.count()
    monkeypatch.setattr(budget.time, "process_time", lambda: float(next(ticks)))


def rung_job(job: MakeJob, folder: Path) -> RungJob:
    """As a process has it that was just started."""
    made = job(held_out=2)
    return RungJob(
        drafter=made.backend.drafter,
        samples=[row.sample for row in made.rows],
        held_out=made.held_out,
        source=made.source,
        config=made.config,
        ends_s=ENDS_S,
        folder=folder,
    )


def weights(found: RungJob) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in found.drafter.state_dict().items()}


def test_rungs_in_processes_of_their_own_learn_what_one_stretch_learns(job: MakeJob, tmp_path: Path) -> None:
    records = []
    for rung in range(3):
        last = rung_job(job, tmp_path)
        records.append(train_rung(last, rung))
    straight = rung_job(job, tmp_path / "other")
    outcome = train_on_budget(straight.drafter, straight.samples, straight.source, straight.config, 9.0)
    assert outcome.steps == records[-1].steps == 9
    assert [record.cpu_s for record in records] == list(ENDS_S)
    for name, weight in weights(straight).items():
        assert torch.equal(weight, weights(last)[name])


def test_a_rung_with_a_record_is_read_and_not_trained(job: MakeJob, tmp_path: Path) -> None:
    first, again = rung_job(job, tmp_path), rung_job(job, tmp_path)
    record = train_rung(first, 0)
    fresh = weights(again)
    assert train_rung(again, 0) == record
    assert any(not torch.equal(weights(again)[name], weight) for name, weight in fresh.items())
    for name, weight in weights(first).items():
        assert torch.equal(weights(again)[name], weight)


def test_a_kill_between_state_and_record_repeats_the_rung(
    job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_rung(rung_job(job, tmp_path), 0)
    with monkeypatch.context() as patch:
        patch.setattr(rungs, "write_json_atomically", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_rung(rung_job(job, tmp_path), 1)
    record = train_rung(rung_job(job, tmp_path), 1)
    assert (record.steps, record.cpu_s) == (3, 3.0)


def test_only_the_newest_state_is_kept(job: MakeJob, tmp_path: Path) -> None:
    for rung in range(3):
        train_rung(rung_job(job, tmp_path), rung)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["rung_2.pt"]
    assert len(list(tmp_path.glob("rung_*.json"))) == 3
