"""A warm start takes weights and nothing else, and is not fooled by weights that know nothing."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.folder import export_drafter
from eagleray.errors import ConfigError
from eagleray.targets.heads import FrozenHeads
from eagleray.training.config import TrainingConfig, WarmStartConfig
from eagleray.training.loop import TrainingJob, best_weights, train
from eagleray.training.warm_start import TRAINING_LOSS, WarmStart, load_warm_start

MakeJob = Callable[..., TrainingJob]
RANDOM_LOSS = math.log(12)


def warm(job: MakeJob, weights: dict[str, torch.Tensor], expected: float) -> TrainingJob:
    """A run on other samples in another order, from these weights."""
    start = WarmStart(origin="there", expected_loss=expected, random_loss=RANDOM_LOSS)
    setup = replace(job("warm", epochs=40, warmup_ratio=0.1, seed=9), warm_start=start)
    setup.backend.load(weights, None)
    return setup


@pytest.fixture
def annealed(job: MakeJob) -> TrainingJob:
    """A run that has come to its end, where the rate is zero."""
    setup = job("cold", epochs=60, learning_rate=3e-2, adam_learning_rate=3e-2)
    train(setup)
    return setup


def test_an_annealed_drafter_gets_a_fresh_schedule_and_learns_on(
    job: MakeJob, annealed: TrainingJob, caplog: pytest.LogCaptureFixture
) -> None:
    before: list[dict[str, float]] = annealed.reporter.metrics
    setup = warm(job, annealed.backend.weights(), before[-1]["loss"])
    with caplog.at_level(logging.WARNING):
        state = train(setup)
    rates = [metrics["learning_rate"] for metrics in setup.reporter.metrics]
    assert before[-1]["learning_rate"] < 1e-3 * max(rates)
    assert rates[:17] == sorted(rates[:17])
    assert rates[16] == setup.config.learning_rate
    assert "may rise until step 16" in caplog.text
    assert "Judge the run from step 32" in caplog.text
    assert state.step == len(rates)
    last = [metrics["loss"] for metrics in setup.reporter.metrics[-8:]]
    assert sum(last) / 8 < sum(metrics["loss"] for metrics in before[-8:]) / 8


def test_random_weights_are_refused_before_the_first_update(job: MakeJob, annealed: TrainingJob) -> None:
    random = job("random").backend.weights()
    setup = warm(job, random, annealed.reporter.metrics[-1]["loss"])
    with pytest.raises(ConfigError, match=r"first loss .* from there is .* random weights have about 2\.485"):
        train(setup)
    assert all(torch.equal(tensor, random[name]) for name, tensor in setup.backend.weights().items())


def test_a_restarted_warm_start_goes_on_from_its_own_checkpoint(
    job: MakeJob, reporter: Any, annealed: TrainingJob
) -> None:
    expected = annealed.reporter.metrics[-1]["loss"]
    straight = warm(job, annealed.backend.weights(), expected)
    straight = replace(straight, checkpoints=job("straight").checkpoints)
    train(straight)
    stopped = replace(warm(job, annealed.backend.weights(), expected), reporter=reporter(stop_after=5))
    train(stopped)
    resumed = warm(job, annealed.backend.weights(), expected)
    train(resumed)
    weights = resumed.backend.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in straight.backend.weights().items())


def test_resuming_from_another_runs_checkpoints_is_that_run(job: MakeJob, reporter: Any) -> None:
    settings = {"epochs": 2, "held_out": 3, "replay_every_steps": 2}
    straight = job("straight", **settings)
    state = train(straight)
    stopped = job("stopped", reporter(stop_after=3), **settings)
    train(stopped)
    elsewhere = job("elsewhere", **settings)
    elsewhere.checkpoints.adopt(stopped.checkpoints.root)
    assert train(elsewhere) == state
    assert best_weights(elsewhere, state).keys() == elsewhere.backend.weights().keys()
    assert [metrics["step"] for metrics in elsewhere.reporter.metrics] == [4, 5, 6, 7, 8]
    weights = elsewhere.backend.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in straight.backend.weights().items())


def test_resuming_from_a_folder_without_checkpoints_is_no_fresh_start(job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint in .*nothing to resume from"):
        job().checkpoints.adopt(tmp_path / "nothing")


@pytest.mark.parametrize(
    "start",
    [
        {"how": "resume", "checkpoints": "a", "drafter": "b"},
        {"how": "warm_start", "checkpoints": "a", "drafter": "b"},
        {"how": "fresh", "drafter": "b"},
        {"how": "continue"},
    ],
)
def test_the_three_words_exclude_each_other(start: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="start"):
        TrainingConfig.model_validate({"start": start})


class TestLoading:
    @pytest.fixture
    def folder(self, tmp_path: Path, heads: FrozenHeads) -> Path:
        """An exported drafter over 8 of the target's 30 ids."""
        torch.manual_seed(1)
        counts_V = torch.arange(30)
        drafter = build_trainable_drafter(Eagle3Config(draft_vocab_size=8), heads, counts_V)
        export_drafter(drafter, tmp_path / "drafter", {TRAINING_LOSS: 1.5})
        return tmp_path / "drafter"

    def test_weights_and_draft_vocabulary_are_taken_over(self, folder: Path, heads: FrozenHeads) -> None:
        torch.manual_seed(2)
        counts_V = torch.arange(30).flip(0)
        drafter = build_trainable_drafter(Eagle3Config(draft_vocab_size=8), heads, counts_V)
        start = load_warm_start(drafter, WarmStartConfig(how="warm_start", drafter=folder), 30)
        assert drafter.t2d.nonzero().flatten().tolist() == list(range(22, 30))
        assert start == WarmStart(origin=str(folder), expected_loss=1.5, random_loss=math.log(8))

    def test_a_profile_that_knows_no_loss_needs_one_from_the_recipe(
        self, folder: Path, heads: FrozenHeads
    ) -> None:
        drafter = build_trainable_drafter(Eagle3Config(draft_vocab_size=8), heads, torch.arange(30))
        export_drafter(drafter, folder, {})
        with pytest.raises(ConfigError, match=r"Set training\.start\.expected_loss"):
            load_warm_start(drafter, WarmStartConfig(how="warm_start", drafter=folder), 30)
        given = WarmStartConfig(how="warm_start", drafter=folder, expected_loss=2.0)
        assert load_warm_start(drafter, given, 30).expected_loss == 2.0
