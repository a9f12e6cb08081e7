"""A target whose next token depends on the last one alone: a drafter that learned it is never wrong.

The chain is one long cycle, so the token k places on is another one for every k: a drafter whose slots
are shifted by one against the target, in training or live, is always wrong. It says nothing of caches
and positions, which the other tests hold.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.config import DrafterConfig
from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.speculation.acceptance import summarize
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import EMBEDDING, LM_HEAD
from eagleray.targets.weights import expected_shapes
from eagleray.training.config import TrainingConfig
from eagleray.training.optimizer import DrafterOptimizer

CHAIN = 12
"""Tokens of the cycle: id i is followed by the id i + 5 places on."""
PROBABILITY = 0.9
LENGTH = 16
"""Tokens of a training sequence, of which the first two are the prompt."""
ANSWER = LENGTH - 2
STEPS = 40
NEARLY_ALWAYS = 0.95
"""A drafter that is shifted is right once in a dozen."""


def following(token: int) -> int:
    return (token + 5) % CHAIN


@pytest.fixture(scope="module")
def markov(llama_geometry: TargetGeometry) -> TargetDecoder:
    """Layers that add nothing, an embedding row of its own for every token, log p(next) in the head."""
    width = llama_geometry.hidden_size
    geometry = replace(
        llama_geometry,
        vocab_size=CHAIN + 4,
        num_layers=4,
        rms_norm_eps=1e-12,
        tie_word_embeddings=False,
        stop_token_ids=(CHAIN,),
    )
    weights = {
        name: torch.zeros(shape) if len(shape) == 2 else torch.ones(shape)
        for name, shape in expected_shapes(geometry).items()
    }
    weights[EMBEDDING][range(CHAIN), range(CHAIN)] = 1.0
    scores = torch.full((geometry.vocab_size, width), -40.0)
    scores[:CHAIN, :CHAIN] = math.log((1 - PROBABILITY) / (CHAIN - 1))
    for token in range(CHAIN):
        scores[following(token), token] = math.log(PROBABILITY)
    weights[LM_HEAD] = scores / math.sqrt(width)
    return TargetDecoder(geometry, weights)


def test_the_target_has_the_probabilities_it_was_given(markov: TargetDecoder) -> None:
    _, final_BTD = markov.capture(torch.tensor([[3, 8, 1]]), torch.tensor([3]), ())
    probabilities = markov.logits(final_BTD)[0, -1].softmax(-1)
    assert float(probabilities[following(1)]) == pytest.approx(PROBABILITY, abs=1e-6)
    assert float(probabilities[0]) == pytest.approx((1 - PROBABILITY) / (CHAIN - 1), abs=1e-6)


def chain_batch(markov: TargetDecoder, layers: tuple[int, ...], seed: int) -> TrainingBatch:
    """One sequence of the target from every start, as many tokens as fill a few blocks."""
    rows = [torch.arange(CHAIN)]
    for _ in range(LENGTH - 1):
        rows.append((rows[-1] + 5) % CHAIN)
    ids_BT = torch.stack(rows, 1)
    lengths_B = torch.full((CHAIN,), ids_BT.shape[1])
    features_BTLD, final_BTD = markov.capture(ids_BT, lengths_B, layers)
    return TrainingBatch(
        ids_BT=ids_BT,
        lengths_B=lengths_B,
        supervised_BT=torch.arange(ids_BT.shape[1]).expand_as(ids_BT) >= 2,
        features_BTLD=features_BTLD,
        final_BTD=final_BTD,
        seed=seed,
    )


def train(drafter: TrainableDrafter, markov: TargetDecoder) -> None:
    optimizer = DrafterOptimizer(drafter, TrainingConfig(learning_rate=0.05, adam_learning_rate=0.02))
    for step in range(STEPS):
        terms = drafter(chain_batch(markov, drafter.tapped_layers, step))
        (terms.loss_sum / terms.weight_sum).backward()
        optimizer.step(1.0 - step / STEPS)


def test_a_briefly_trained_drafter_is_right_at_every_slot(
    config: DrafterConfig, markov: TargetDecoder, make_drafter: Callable[..., TrainableDrafter]
) -> None:
    drafter = make_drafter(config, markov, shaken=False)
    train(drafter, markov)
    terms = drafter(chain_batch(markov, drafter.tapped_layers, STEPS))
    assert (terms.correct_K / terms.counted_K).min() > NEARLY_ALWAYS
    depth = len(terms.counted_K)
    requests = [
        GenerationRequest(request_id=str(start), prompt_ids=(start, following(start)), max_new_tokens=ANSWER)
        for start in range(CHAIN)
    ]
    run = NativeEngine(markov, NativeEngineConfig()).generate(
        requests, draft=DraftSetting(source=drafter, depth=depth)
    )
    cycles = [cycle for generation in run.generations for cycle in generation.cycles]
    rates = summarize(cycles).acceptance_rate_by_slot
    assert len(rates) == depth
    assert min(rates) > NEARLY_ALWAYS, rates
    for generation in run.generations:
        for token, after in zip(generation.answer_ids, generation.answer_ids[1:], strict=False):
            assert after == following(token)
