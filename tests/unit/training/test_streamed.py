"""Features from a stream make the run that they make beside the trainer."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from eagleray.errors import ClusterError, DataError
from eagleray.training.loop import TrainingJob, train
from eagleray.training.streamed import BatchCapturer, StreamedBatch, StreamedFeatures, in_stream_order

MakeJob = Callable[..., TrainingJob]
SETTINGS = {"epochs": 2, "global_batch_size": 4, "micro_batch_size": 1}
CPU = torch.device("cpu")


def stream(job: TrainingJob, first_step: int, ranks: int) -> Iterator[StreamedBatch]:
    """What a pool of target processes would send."""
    plan = job.rows.plan()
    capturer = BatchCapturer(job.rows, plan, job.config, job.source, CPU)
    for step in range(first_step, plan.total_steps(job.config.epochs, None)):
        yield from capturer.step(step, ranks)


def streamed(job: TrainingJob, batches: Iterator[StreamedBatch]) -> TrainingJob:
    kept_out = [sample.sample_id for sample in job.held_out]
    return replace(job, source=StreamedFeatures(batches, job.source, kept_out))


def weights(job: TrainingJob) -> dict[str, torch.Tensor]:
    return job.backend.weights()


@pytest.mark.parametrize("pack", [False, True])
def test_a_streamed_run_is_the_colocated_run_bit_for_bit(job: MakeJob, pack: bool) -> None:
    settings = SETTINGS | {"pack": pack, "max_length": 12}
    colocated = job("colocated", **settings)
    train(colocated)
    other = job("streamed", **settings)
    train(streamed(other, stream(other, 0, 1)))
    assert other.reporter.metrics[-1]["loss"] == colocated.reporter.metrics[-1]["loss"]
    for name, tensor in weights(colocated).items():
        assert torch.equal(tensor, weights(other)[name]), name


def test_a_stream_is_taken_up_at_the_step_of_the_checkpoint(job: MakeJob, reporter: Any) -> None:
    straight = job("straight", **SETTINGS)
    train(straight)
    stopped = job("resumed", reporter(stop_after=3), **SETTINGS)
    assert train(streamed(stopped, stream(stopped, 0, 1))).step == 3
    resumed = job("resumed", **SETTINGS)
    train(streamed(resumed, stream(resumed, 3, 1)))
    for name, tensor in weights(straight).items():
        assert torch.equal(tensor, weights(resumed)[name]), name


def test_dealt_out_in_turn_every_rank_gets_its_own(job: MakeJob) -> None:
    made = job(**SETTINGS)
    plan = made.rows.plan()
    dealt = list(in_stream_order(plan, 1, 2, made.config))
    for rank in range(2):
        assert [each for each, _ in dealt][rank::2] == [rank, rank]
        assert [share for _, share in dealt][rank::2] == plan.micro_batches(
            1, rank=rank, ranks=2, micro_batch_size=1
        )


@pytest.mark.parametrize("skipped", [1, 1000], ids=["one-too-far", "ended"])
def test_a_stream_out_of_step_is_an_error_and_no_other_batch(job: MakeJob, skipped: int) -> None:
    made = job(**SETTINGS)
    with pytest.raises(ClusterError, match="this rank is at sample-"):
        train(streamed(made, islice(stream(made, 0, 1), skipped, None)))


def test_what_a_target_process_raised_reaches_the_trainer(job: MakeJob, tmp_path: Path) -> None:
    failed = StreamedBatch(names="", error=DataError("a damaged shard"))
    with pytest.raises(DataError, match="a damaged shard"):
        train(streamed(job(**SETTINGS), iter([failed])))
