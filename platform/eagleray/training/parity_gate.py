"""The gate before a long run: what trains is what is exported, and what drafts live is what replays.

A fresh drafter learns a few short samples by heart, in seconds. Then it is exported and loaded again, and
decodes their prompts in the native engine. Wrong positions, layer ids, masks or vocabulary maps between the
training step and the drafting session show as a tau of one; between session and replay as unequal cycles;
between training and export as unequal losses.
"""

import tempfile
from collections.abc import Sequence
from heapq import nsmallest
from itertools import zip_longest
from pathlib import Path

import torch

from eagleray.corpus.sample import Sample
from eagleray.drafters.base import StepTerms, TrainableDrafter, TrainingBatch
from eagleray.drafters.folder import export_drafter, load_drafter
from eagleray.drafters.replay import EmittedAnswer, replay
from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.replayed import replay_generations
from eagleray.errors import NumericsError
from eagleray.settings import Settings
from eagleray.speculation.acceptance import Cycle, summarize
from eagleray.targets.decoder import TargetDecoder
from eagleray.training.collate import collate
from eagleray.training.config import TrainingConfig
from eagleray.training.features import ColocatedFeatures
from eagleray.training.held_out import last_answer, replay_depth
from eagleray.training.optimizer import DrafterOptimizer
from eagleray.training.rows import first_row
from eagleray.training.totals import normalise_gradients

SAMPLES = 2
STEPS = 12
ANSWER_TOKENS = 24
"""Decoded of each sample."""


LARGEST_GAP = 0.2
"""Between the training step's accuracy and the session's. Not zero: a block drafter trains at random anchors,
and at the size of its block."""


class GateOutcome(Settings):
    """What the gate saw."""

    first_loss: float
    last_loss: float
    accuracy: float
    """Share of the training step's first slots that are right after the last step."""
    drafted_accuracy: float
    """The same of drafts made by the session, at every position of the answers."""
    tau: float
    """Of the live decode, at `depth`."""
    depth: int


def gate_samples(samples: Sequence[Sample]) -> list[Sample]:
    """The shortest samples whose answers the target emitted; ids decide among equals."""
    emitted = (sample for sample in samples if sample.answer_origin == "target")
    return nsmallest(SAMPLES, emitted, key=lambda sample: (len(sample.input_ids), sample.sample_id))


def check_parity(
    drafter: TrainableDrafter, decoder: TargetDecoder, samples: Sequence[Sample], config: TrainingConfig
) -> GateOutcome:
    """Put a fresh drafter, which is changed, through the gate.

    Args:
        samples: From `gate_samples`, at least one.

    Raises:
        NumericsError: The loss does not fall, an export gives another loss than the drafter, drafts are far
            worse than the training step says, or live and replayed cycles differ.
    """
    source = ColocatedFeatures(decoder, drafter.tapped_layers)
    rows = [first_row(sample, config.max_length) for sample in samples]
    batch = collate(rows, source, seed=0, device=decoder.device)
    losses, accuracy = _learn_by_heart(drafter, batch, config)
    if not losses[-1] < losses[0]:
        raise NumericsError(
            f"Parity gate: after {STEPS} steps on one batch the loss is {losses[-1]:.4g}, not below the "
            f"first ({losses[0]:.4g}). Lower training.learning_rate, or look at the drafter's training step."
        )
    with tempfile.TemporaryDirectory() as folder:
        export_drafter(drafter, Path(folder) / "drafter", {})
        loaded = load_drafter(Path(folder) / "drafter", decoder.heads)
    _require_same_loss(drafter, loaded.to(decoder.device), batch)
    depth = replay_depth(drafter, config)
    drafted = _draft_everywhere(loaded, batch, samples, depth)
    if accuracy - drafted > LARGEST_GAP:
        raise NumericsError(
            f"Parity gate: the drafter's first slot is right in {accuracy:.0%} of the training step's "
            f"predictions on one batch, but in {drafted:.0%} of its drafts at the same positions. Training "
            "step and drafting session disagree: look for a position, layer id or mask that is off by one."
        )
    cycles = _decode(loaded, decoder, samples, depth, config.max_length)
    return GateOutcome(
        first_loss=losses[0],
        last_loss=losses[-1],
        accuracy=accuracy,
        drafted_accuracy=drafted,
        tau=summarize(cycles).acceptance_length,
        depth=depth,
    )


def _learn_by_heart(
    drafter: TrainableDrafter, batch: TrainingBatch, config: TrainingConfig
) -> tuple[list[float], float]:
    """Losses before every step and after the last, and the share of first drafts that are then right."""
    optimizer = DrafterOptimizer(drafter, config)
    losses: list[float] = []
    for _ in range(STEPS):
        terms: StepTerms = drafter(batch)
        losses.append((terms.loss_sum / terms.weight_sum).item())
        terms.loss_sum.backward()
        normalise_gradients(drafter, float(terms.weight_sum), config.grad_clip)
        optimizer.step(1.0)
    with torch.no_grad():
        terms = drafter(batch)
    losses.append((terms.loss_sum / terms.weight_sum).item())
    return losses, float(terms.correct_K[0] / terms.counted_K[0])


def _require_same_loss(drafter: TrainableDrafter, loaded: TrainableDrafter, batch: TrainingBatch) -> None:
    with torch.no_grad():
        own, other = (float(one(batch).loss_sum) for one in (drafter, loaded))
    if own != other:
        raise NumericsError(
            f"Parity gate: the drafter's loss on one batch is {own!r}, and {other!r} after export and "
            "loading. Something it computes with is not exported: look at export_tensors and load_tensors."
        )


def _draft_everywhere(
    drafter: TrainableDrafter, batch: TrainingBatch, samples: Sequence[Sample], depth: int
) -> float:
    """Share of first drafts that are right, over every position of the last answers: a replay of one cycle
    from each."""
    spans = [
        last_answer(sample, int(length)) for sample, length in zip(samples, batch.lengths_B, strict=True)
    ]
    from_each = [
        EmittedAnswer(
            ids_T=batch.ids_BT[row, : position + 2],
            prompt_tokens=position,
            features_TLD=batch.features_BTLD[row],
            final_TD=batch.final_BTD[row],
            # Room for the first token, the draft, and the bonus token that would follow it.
            max_answer_tokens=3,
        )
        for row, (start, end) in enumerate(spans)
        for position in range(start, end - 1)
    ]
    cycles = [cycle for answer in replay(drafter, from_each, depth) for cycle in answer]
    return sum(cycle.accepted for cycle in cycles) / max(1, len(cycles))


def _decode(
    drafter: TrainableDrafter, decoder: TargetDecoder, samples: Sequence[Sample], depth: int, max_length: int
) -> list[Cycle]:
    """Live cycles of the samples' last answers, held against their replay."""
    engine = NativeEngine(decoder, NativeEngineConfig(max_batch_size=len(samples)))
    requests = []
    for sample in samples:
        start, end = last_answer(sample, max_length)
        tokens = min(end - start, ANSWER_TOKENS)
        requests.append(
            GenerationRequest(
                request_id=sample.sample_id, prompt_ids=sample.input_ids[:start], max_new_tokens=tokens
            )
        )
    draft = DraftSetting(source=drafter, depth=depth)
    # Captured in the live decode, so that replay sees the same bits whatever the target's dtype.
    live = engine.generate(requests, draft=draft, capture_layers=drafter.tapped_layers).generations
    replayed = replay_generations(draft, requests, live)
    for generation, cycles in zip(live, replayed, strict=True):
        if generation.cycles != cycles:
            pairs = zip_longest(generation.cycles, cycles)
            place = next(index for index, (one, other) in enumerate(pairs) if one != other)
            raise NumericsError(
                f"Parity gate: cycle {place} of sample {generation.request_id} delivered "
                f"{_tokens(generation.cycles, place)} tokens live and {_tokens(cycles, place)} in replay. "
                "The drafter's session depends on more than what is committed: look at its observe and draft."
            )
    return [cycle for cycles in replayed for cycle in cycles]


def _tokens(cycles: Sequence[Cycle], place: int) -> int:
    return cycles[place].delivered if place < len(cycles) else 0
