"""The loop: resuming, accumulating and splitting over ranks change nothing; damage stops it."""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from eagleray.errors import ConfigError, NumericsError
from eagleray.training.collate import collate
from eagleray.training.loop import TrainingJob, train
from tests.unit.training.ranks import as_rank

MakeJob = Callable[..., TrainingJob]


def weights(job: TrainingJob) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in job.backend.drafter.state_dict().items()}


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_stopped_and_resumed_run_is_the_straight_run_bit_for_bit(
    job: MakeJob, reporter: Any, optimizer: str
) -> None:
    straight = job("straight", epochs=2, optimizer=optimizer)
    train(straight)
    stopped = job("resumed", reporter(stop_after=3), epochs=2, optimizer=optimizer)
    assert train(stopped).step == 3
    resumed = job("resumed", epochs=2, optimizer=optimizer)
    assert train(resumed).step == 8
    for name, tensor in weights(straight).items():
        assert torch.equal(tensor, weights(resumed)[name]), name
    assert [m["loss"] for m in straight.reporter.metrics] == [
        m["loss"] for m in [*stopped.reporter.metrics, *resumed.reporter.metrics]
    ]


class Killed:
    """A reporter whose process dies when a step is told."""

    def __init__(self, reporter: Any, at: int):
        self._reporter = reporter
        self._at = at

    def report(self, metrics: dict[str, float]) -> None:
        if metrics["step"] == self._at:
            os._exit(9)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reporter, name)


def _die(root: Path, make: MakeJob, at: int) -> None:
    torch.set_num_threads(1)
    job = make(root, epochs=2, checkpoint_every_steps=2)
    train(replace(job, reporter=Killed(job.reporter, at)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("step", random.Random(5).sample(range(1, 9), 3))
def test_killed_at_a_random_step_and_started_again_it_is_the_straight_run(
    job: MakeJob, job_at: MakeJob, tmp_path: Path, step: int
) -> None:
    straight = job("straight", epochs=2)
    train(straight)
    victim = mp.get_context("fork").Process(target=_die, args=(tmp_path / "killed", job_at, step))
    victim.start()
    victim.join()
    assert victim.exitcode == 9
    resumed = job("killed", epochs=2, checkpoint_every_steps=2)
    train(resumed)
    steps = [m["step"] for m in resumed.reporter.metrics]
    assert steps == list(range(steps[0], 9))
    assert steps[0] <= step
    for name, tensor in weights(straight).items():
        assert torch.equal(tensor, weights(resumed)[name]), name


def test_a_finished_run_does_nothing_when_started_again(job: MakeJob) -> None:
    train(job(epochs=1))
    again = job(epochs=1)
    assert train(again).step == 4
    assert again.reporter.metrics == []


def test_accumulated_micro_batches_give_the_step_of_one_batch(job: MakeJob) -> None:
    whole = job("whole", epochs=2, global_batch_size=4, micro_batch_size=4)
    parts = job("parts", epochs=2, global_batch_size=4, micro_batch_size=1)
    train(whole)
    train(parts)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(tensor, weights(parts)[name], atol=1e-6, rtol=1e-5)
    for one, other in zip(whole.reporter.metrics, parts.reporter.metrics, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-5)


def test_a_run_whose_short_samples_share_rows_is_the_run_in_which_none_do(job: MakeJob) -> None:
    settings = {"epochs": 2, "global_batch_size": 4, "micro_batch_size": 1, "max_length": 12}
    apart, packed = job("apart", **settings), job("packed", pack=True, **settings)
    forwards = {"apart": 0, "packed": 0}
    for name, made in (("apart", apart), ("packed", packed)):
        made.backend.drafter.register_forward_hook(
            lambda *_, name=name: forwards.update({name: forwards[name] + 1})
        )
        train(made)
    assert forwards["packed"] < forwards["apart"] == 4 * apart.reporter.metrics[-1]["step"]
    for name, tensor in weights(apart).items():
        torch.testing.assert_close(tensor, weights(packed)[name], atol=1e-6, rtol=1e-5)
    for one, other in zip(apart.reporter.metrics, packed.reporter.metrics, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert one["supervised_tokens"] == other["supervised_tokens"]


def _run_rank(
    rank: int, ranks: int, root: Path, results: Path, settings: dict[str, Any], make: MakeJob
) -> None:
    def work() -> None:
        job = make(root / "run", **settings)
        train(job)
        if rank == 0:
            losses = [metrics["loss"] for metrics in job.reporter.metrics]
            torch.save({"weights": weights(job), "losses": losses}, results)

    as_rank(rank, ranks, root, work)


def test_two_ranks_train_as_one(job: MakeJob, job_at: MakeJob, tmp_path: Path) -> None:
    settings = {"epochs": 2, "global_batch_size": 4, "micro_batch_size": 1}
    one = job("one", **settings)
    train(one)
    root, results = tmp_path / "two", tmp_path / "two.pt"
    root.mkdir()
    mp.start_processes(
        _run_rank, args=(2, root, results, {**settings, "workers": 2}, job_at), nprocs=2, start_method="fork"
    )
    two = torch.load(results)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, two["weights"][name], atol=1e-6, rtol=1e-5)
    assert two["losses"] == pytest.approx([m["loss"] for m in one.reporter.metrics], rel=1e-6)


def test_the_first_step_reports_the_token_mean_and_not_a_mean_of_means(job: MakeJob) -> None:
    setup = job(epochs=1, micro_batch_size=1)
    batch = setup.rows.plan().global_batch(0)
    tokens, losses = [], []
    for index in batch:
        row = setup.rows[index]
        terms = setup.backend.drafter(collate([row], setup.source, seed=0, device=torch.device("cpu")))
        tokens.append(row.supervised_tokens)
        losses.append(terms.loss_sum.item())
    train(setup)
    assert setup.reporter.metrics[0]["loss"] == pytest.approx(sum(losses) / sum(tokens), rel=1e-6)
    assert setup.reporter.metrics[0]["supervised_tokens"] == sum(tokens)


def test_checkpoints_come_at_the_interval_and_at_the_end(job: MakeJob) -> None:
    setup = job(epochs=2, checkpoint_every_steps=3, keep_checkpoints=5)
    train(setup)
    assert [path.name for path in setup.reporter.saved] == ["step-00000003", "step-00000006", "step-00000008"]


def test_settings_that_changed_under_a_checkpoint_are_refused(job: MakeJob) -> None:
    train(job(epochs=1))
    with pytest.raises(ConfigError, match="fingerprint f; this run has g"):
        train(replace(job(epochs=1), fingerprint="g"))


def test_a_loss_that_is_not_finite_names_the_step_and_the_samples(job: MakeJob) -> None:
    setup = job(epochs=1)
    with torch.no_grad():
        setup.backend.drafter.inner.weight.fill_(torch.nan)
    with pytest.raises(NumericsError, match=r"Loss of step 0 is nan on samples sample-\d, sample-\d"):
        train(setup)


def test_training_lowers_the_loss(job: MakeJob) -> None:
    setup = job(epochs=40, learning_rate=3e-2, adam_learning_rate=3e-2)
    train(setup)
    losses = [metrics["loss"] for metrics in setup.reporter.metrics]
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])


def test_in_bfloat16_the_norms_move_and_go_on_moving_after_a_resume(job: MakeJob, reporter: Any) -> None:
    """A norm's weight of one in bfloat16 would swallow steps of a thousandth."""
    settings = {"epochs": 30, "compute_dtype": "bfloat16", "adam_learning_rate": 1e-3, "schedule": "constant"}
    stopped = job("run", reporter(stop_after=50), **settings)
    train(stopped)
    halfway = weights(stopped)["norm.weight"]
    assert halfway.dtype == torch.float32
    assert (halfway != 1).all()
    resumed = job("run", **settings)
    train(resumed)
    assert (weights(resumed)["norm.weight"] != halfway).all()


def test_bfloat16_products_learn_about_what_float32_ones_learn(job: MakeJob) -> None:
    exact, rounded = job("exact", epochs=3), job("rounded", epochs=3, compute_dtype="bfloat16")
    train(exact)
    train(rounded)
    losses = [[metrics["loss"] for metrics in each.reporter.metrics] for each in (exact, rounded)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
