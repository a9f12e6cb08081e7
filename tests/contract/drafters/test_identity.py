"""Greedy answers with any drafter are the plain ones, bit for bit: many prompts, in companies of any size."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from eagleray.drafters.base import TrainableDrafter
from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.speculation.config import SamplingConfig, TreeSetting
from eagleray.targets.decoder import TargetDecoder

PROMPTS = 200
NEW_TOKENS = 12


def random_requests(target: TargetDecoder) -> list[GenerationRequest]:
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 12, (PROMPTS,), generator=generator).tolist()
    return [
        GenerationRequest(
            request_id=str(number),
            prompt_ids=tuple(
                torch.randint(0, target.geometry.vocab_size, (length,), generator=generator).tolist()
            ),
            max_new_tokens=NEW_TOKENS,
        )
        for number, length in enumerate(lengths)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_200_greedy_answers_are_the_plain_ones(
    drafter: TrainableDrafter,
    target: TargetDecoder,
    depth_of: Callable[[TrainableDrafter], int],
    batch_size: int,
) -> None:
    requests = random_requests(target)
    plain = NativeEngine(target, NativeEngineConfig(max_batch_size=1)).generate(requests).generations
    engine = NativeEngine(target, NativeEngineConfig(max_batch_size=batch_size))
    for tree in (None, TreeSetting(top_k=3, nodes=8)):
        draft = DraftSetting(source=drafter, depth=depth_of(drafter), tree=tree)
        run = engine.generate(requests, draft=draft)
        assert [one.answer_ids for one in run.generations] == [one.answer_ids for one in plain]


def test_a_few_answers_of_every_kind_in_one_batch_are_the_plain_ones(
    drafter: TrainableDrafter, target: TargetDecoder, depth_of: Callable[[TrainableDrafter], int]
) -> None:
    requests = [
        replace(request, seed=number, sampling=SamplingConfig(temperature=0.0 if number % 2 else 1.0))
        for number, request in enumerate(random_requests(target)[:6])
    ]
    engine = NativeEngine(target, NativeEngineConfig(max_batch_size=4))
    draft = DraftSetting(source=drafter, depth=depth_of(drafter), adaptive=True)
    plain, drafted = engine.generate(requests), engine.generate(requests, draft=draft)
    assert [one.answer_ids for one in drafted.generations] == [one.answer_ids for one in plain.generations]
