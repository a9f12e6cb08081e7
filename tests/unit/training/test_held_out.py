"""Which samples are kept out, and how the checkpoint to export is chosen by their replay tau."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from eagleray.corpus.sample import Sample
from eagleray.training import loop
from eagleray.training.config import TrainingConfig
from eagleray.training.held_out import keep_out, replay_tau
from eagleray.training.loop import TrainingJob, best_weights, train
from eagleray.training.rows import TrainingRow
from eagleray.watchdog.telemetry import Phase
from tests.unit.training.ranks import as_rank

MakeJob = Callable[..., TrainingJob]
MakeSamples = Callable[..., list[Sample]]


def ids(samples: list[Sample]) -> list[str]:
    return [sample.sample_id for sample in samples]


def test_the_split_is_complete_and_does_not_depend_on_order_or_size(samples: MakeSamples) -> None:
    rows = samples(*[(9, 4)] * 60)
    train_rows, held_out = keep_out(rows, 4)
    assert len(held_out) == 4
    assert sorted(ids(train_rows) + ids(held_out)) == sorted(ids(rows))
    assert set(ids(keep_out(rows[::-1], 4)[1])) == set(ids(held_out))
    assert set(ids(keep_out(rows, 6)[1])) > set(ids(held_out))


@pytest.mark.parametrize(("count", "kept"), [(9, 0), (40, 4), (400, 32)])
def test_at_most_a_tenth_is_kept_out(samples: MakeSamples, count: int, kept: int) -> None:
    assert len(keep_out(samples(*[(9, 4)] * count), 32)[1]) == kept


def test_samples_of_one_prompt_stay_together_and_given_answers_stay_in(samples: MakeSamples) -> None:
    rows = samples(*[(9, 4)] * 40)
    twins = [replace(row, sample_id=f"{row.sample_id}-2", part=1) for row in rows]
    given = [replace(row, answer_origin="given") for row in samples(*[(8, 4)] * 20)]
    given = [replace(row, sample_id=f"given-{row.sample_id}") for row in given]
    _, held_out = keep_out([*rows, *given, *twins], 7)
    # Seven are wanted, but prompts come in pairs.
    assert len(held_out) == 6
    assert {row.part for row in held_out} == {0, 1}
    assert len({row.input_ids for row in held_out}) == 3
    assert not any(row.sample_id.startswith("given") for row in held_out)


class Oracle:
    """Features that hold the token after the next one, read by a drafter that knows how."""

    phase: Phase = "data"

    def features(self, rows: list[TrainingRow], device: torch.device) -> Any:
        ids_BT = torch.tensor([row.sample.input_ids[: row.end] for row in rows])
        after_next = torch.nn.functional.pad(ids_BT, (0, 2))[:, 2:]
        known = torch.nn.functional.one_hot(after_next, 12).float()
        return known.unflatten(-1, (2, 6)), known[..., :6]


def test_replay_tau_is_hand_counted(job: MakeJob, samples: MakeSamples) -> None:
    """A drafter that is always right at its first slot, on an answer of one token again and again.

    The answer has 12 tokens; prefill gives one, and depth 5 delivers 6 and then the 5 that are left.
    """
    setup = job(replay_depth=5)
    setup.backend.drafter.logits = lambda features: features
    same = [replace(s, input_ids=(1, 2, 3, *[7] * 12)) for s in samples((3, 12))]
    assert replay_tau(setup.backend.drafter, same, Oracle(), setup.config) == 11 / 2
    assert replay_tau(setup.backend.drafter, same, Oracle(), TrainingConfig(replay_depth=1)) == 11 / 6
    # Cut to 3 + 6 tokens: five follow the first.
    assert replay_tau(setup.backend.drafter, same, Oracle(), TrainingConfig(max_length=9)) == 5 / 1


def test_the_checkpoint_with_the_highest_replay_tau_is_kept_and_exported(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    taus = iter([1.0, 2.0, 1.5, 1.25])
    seen: list[dict[str, torch.Tensor]] = []

    def scripted(drafter: Any, *_: Any) -> float:
        seen.append({name: tensor.clone() for name, tensor in drafter.state_dict().items()})
        return next(taus)

    monkeypatch.setattr(loop, "replay_tau", scripted)
    setup = job(held_out=2, epochs=4, replay_every_steps=4, checkpoint_every_steps=5, keep_checkpoints=1)
    state = train(setup)
    assert (state.best_step, state.best_replay_tau) == (8, 2.0)
    reported = {m["step"]: m["replay_tau"] for m in setup.reporter.metrics if "replay_tau" in m}
    assert reported == {4: 1.0, 8: 2.0, 12: 1.5, 16: 1.25}
    assert sorted(path.name for path in setup.checkpoints.root.iterdir()) == [
        "step-00000008",
        "step-00000016",
    ]
    for name, tensor in best_weights(setup, state).items():
        assert torch.equal(tensor, seen[1][name]), name


def test_without_kept_out_samples_the_last_weights_are_exported(job: MakeJob) -> None:
    setup = job(epochs=2)
    state = train(setup)
    assert state.best_step is None
    last = setup.backend.drafter.state_dict()
    assert all(torch.equal(tensor, last[name]) for name, tensor in best_weights(setup, state).items())


SETTINGS = {"held_out": 5, "epochs": 3, "replay_every_steps": 2, "global_batch_size": 2}


def figures(metrics: list[dict[str, float]]) -> list[tuple[float, float]]:
    return [(m["step"], m["replay_tau"]) for m in metrics if "replay_tau" in m]


def test_a_resumed_run_measures_and_chooses_as_the_straight_run(job: MakeJob, reporter: Any) -> None:
    straight = job("straight", **SETTINGS)
    state = train(straight)
    stopped = job("resumed", reporter(stop_after=5), **SETTINGS)
    train(stopped)
    resumed = job("resumed", **SETTINGS)
    assert train(resumed) == state
    assert figures(straight.reporter.metrics) == figures(
        [*stopped.reporter.metrics, *resumed.reporter.metrics]
    )


def _run_rank(rank: int, root: Path, results: Path, make: MakeJob) -> None:
    def work() -> None:
        job = make(root / "run", **SETTINGS, workers=2, micro_batch_size=1)
        state = train(job)
        torch.save((figures(job.reporter.metrics), state.best_step), results / f"{rank}.pt")

    as_rank(rank, 2, root, work)


def test_two_ranks_agree_on_what_one_measures(job: MakeJob, job_at: MakeJob, tmp_path: Path) -> None:
    one = job("one", **SETTINGS)
    state = train(one)
    (tmp_path / "two").mkdir()
    mp.start_processes(_run_rank, args=(tmp_path / "two", tmp_path, job_at), nprocs=2, start_method="fork")
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert ranks[0] == ranks[1] == (figures(one.reporter.metrics), state.best_step)
