"""Samples kept out of training, and the replay tau that they give: what picks the checkpoint to export.

Validation loss is no substitute: it weighs every position alike, while a draft lives from its first
slots. Shapes: T positions.
"""

import hashlib
from array import array
from collections.abc import Sequence

import torch
import torch.distributed as dist

from eagleray.corpus.packed import Chosen
from eagleray.corpus.sample import Sample
from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.replay import EmittedAnswer, replay
from eagleray.speculation.acceptance import Cycle, summarize
from eagleray.training.collate import collate
from eagleray.training.config import TrainingConfig
from eagleray.training.features import FeatureSource
from eagleray.training.rows import first_row

LARGEST_SHARE = 0.1
"""Of the samples, at most this much is kept out, however many were asked for."""
ROWS = 16
"""Samples replayed together; they hold features, but no activations."""


def keep_out(samples: Sequence[Sample], wanted: int) -> tuple[Sequence[Sample], list[Sample]]:
    """Split into samples to train on and about `wanted` samples to replay.

    Only answers of the target can be replayed. Samples that share a prompt stay together, and which
    prompts are chosen depends on their ids alone: a larger dataset does not reshuffle them.
    """
    allowed = min(wanted, int(len(samples) * LARGEST_SHARE))
    by_prompt: dict[bytes, list[int]] = {}
    for index, sample in enumerate(samples):
        if sample.answer_origin == "target":
            by_prompt.setdefault(_prompt_hash(sample), []).append(index)
    held_out: list[int] = []
    for _, sharing in sorted(by_prompt.items()):
        if len(held_out) + len(sharing) <= allowed:
            held_out += sharing
    left_out = set(held_out)
    others = array("q", (index for index in range(len(samples)) if index not in left_out))
    return Chosen(samples, others), [samples[index] for index in held_out]


def replay_tau(
    drafter: TrainableDrafter, samples: Sequence[Sample], source: FeatureSource, config: TrainingConfig
) -> float:
    """Tau of the drafter in the decode of each sample's last answer, at `config.replay_depth`.

    Computed by the first rank, known to all of them afterwards.
    """
    device = next(drafter.parameters()).device
    tau = torch.zeros((), dtype=torch.float64, device=device)
    if not dist.is_initialized() or dist.get_rank() == 0:
        cycles: list[Cycle] = []
        depth = replay_depth(drafter, config)
        for start in range(0, len(samples), ROWS):
            share = samples[start : start + ROWS]
            batch = collate(
                [first_row(sample, config.max_length) for sample in share], source, seed=0, device=device
            )
            answers = [_emitted(sample, batch, row) for row, sample in enumerate(share)]
            cycles += [cycle for answer in replay(drafter, answers, depth, max_rows=ROWS) for cycle in answer]
        tau.fill_(summarize(cycles).acceptance_length)
    if dist.is_initialized():
        dist.broadcast(tau, src=0)
    return tau.item()


def replay_depth(drafter: TrainableDrafter, config: TrainingConfig) -> int:
    """The depth of the settings, or the drafter's largest."""
    return min(config.replay_depth, drafter.max_depth or config.replay_depth)


def last_answer(sample: Sample, max_length: int) -> tuple[int, int]:
    """Start and end of the last supervised span that begins within the training length."""
    return [(start, min(end, max_length)) for start, end in sample.supervised if start < max_length][-1]


def _emitted(sample: Sample, batch: TrainingBatch, row: int) -> EmittedAnswer:
    start, end = last_answer(sample, int(batch.lengths_B[row]))
    return EmittedAnswer(
        ids_T=batch.ids_BT[row, :end],
        prompt_tokens=start,
        features_TLD=batch.features_BTLD[row, :end],
        final_TD=batch.final_BTD[row, :end],
        max_answer_tokens=end - start,
    )


def _prompt_hash(sample: Sample) -> bytes:
    return hashlib.sha256(array("q", sample.input_ids[: sample.prompt_tokens]).tobytes()).digest()
