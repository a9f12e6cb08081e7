"""Replay tau is native tau, cycle by cycle, for every drafter there is."""

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from eagleray.drafters.base import DraftSource, TrainableDrafter, TrainingBatch
from eagleray.drafters.catalog import DRAFTERS, build_drafter
from eagleray.engines.base import DraftSetting, Generation, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.replayed import replay_generations
from eagleray.errors import DataError
from eagleray.speculation.acceptance import summarize
from eagleray.targets.decoder import TargetDecoder

VOCAB_SIZE, NEW_TOKENS, DEPTH = 60, 24, 5
PROMPT_LENGTHS = [5, 1, 9, 3, 12, 7, 2, 20, 4, 6]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TargetDecoder:
    """A random target; its greedy answers wander and return, so that a drafter can learn some of them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=96,
        initializer_range=0.2,
        eos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("target")
    LlamaForCausalLM(config).save_pretrained(folder)
    return TargetDecoder.load(folder, torch.float32, batch_invariant=True)


def make_engine(decoder: TargetDecoder, stop_ids: tuple[int, ...] = (), **settings: Any) -> NativeEngine:
    return NativeEngine(decoder, NativeEngineConfig(batch_invariant=True, **settings), stop_ids)


def make_requests(limits: list[int]) -> list[GenerationRequest]:
    generator = torch.Generator().manual_seed(7)
    return [
        GenerationRequest(
            request_id=f"r{index}",
            prompt_ids=tuple(torch.randint(VOCAB_SIZE, (length,), generator=generator).tolist()),
            max_new_tokens=limit,
        )
        for index, (length, limit) in enumerate(zip(PROMPT_LENGTHS, limits, strict=True))
    ]


def _to_the_end(rows: torch.Tensor) -> torch.Tensor:
    """Nothing was computed at the last token; repeat the row before it."""
    return torch.cat((rows, rows[-1:]))


def overfit(drafter: TrainableDrafter, generations: tuple[Generation, ...]) -> None:
    """Learn a part of the answers by heart, so that drafts are neither all right nor all wrong."""
    ids = [torch.tensor((*g.prompt_ids, *g.answer_ids)) for g in generations]
    captured = [g.captured for g in generations if g.captured is not None]
    supervised = [
        torch.arange(len(row)) >= len(g.prompt_ids) for row, g in zip(ids, generations, strict=True)
    ]
    batch = TrainingBatch(
        ids_BT=pad_sequence(ids, batch_first=True),
        lengths_B=torch.tensor([len(row) for row in ids]),
        supervised_BT=pad_sequence(supervised, batch_first=True),
        features_BTLD=pad_sequence([_to_the_end(c.features_TLD) for c in captured], True),
        final_BTD=pad_sequence([_to_the_end(c.final_TD) for c in captured], True),
        seed=0,
    )
    optimizer = torch.optim.Adam([p for p in drafter.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(40):
        terms = drafter(batch)
        optimizer.zero_grad()
        (terms.loss_sum / terms.weight_sum).backward()
        optimizer.step()


@pytest.fixture(scope="module", params=[spec.name for spec in DRAFTERS])
def source(request: pytest.FixtureRequest, decoder: TargetDecoder) -> DraftSource:
    torch.manual_seed(1)
    config = next(spec.config for spec in DRAFTERS if spec.name == request.param)(name=request.param)
    drafter = build_drafter(config, decoder.heads)
    if isinstance(drafter, TrainableDrafter):
        half = make_requests([NEW_TOKENS] * 10)[:5]
        run = make_engine(decoder).generate(half, capture_layers=drafter.tapped_layers)
        overfit(drafter, run.generations)
    return drafter


def cycles_of(
    engine: NativeEngine, requests: list[GenerationRequest], draft: DraftSetting
) -> tuple[list[Any], list[Any]]:
    """Per answer: replayed cycles of plain answers, and the live ones."""
    plain = engine.generate(requests, capture_layers=draft.source.tapped_layers).generations
    live = engine.generate(requests, draft=draft).generations
    assert [g.answer_ids for g in live] == [g.answer_ids for g in plain]
    return replay_generations(draft, requests, plain), [g.cycles for g in live]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_replay_gives_the_cycles_of_the_live_decode(
    decoder: TargetDecoder, source: DraftSource, batch_size: int
) -> None:
    engine = make_engine(decoder, max_batch_size=batch_size)
    depth = min(DEPTH, source.max_depth or DEPTH)
    replayed, live = cycles_of(
        engine, make_requests([NEW_TOKENS] * 10), DraftSetting(source=source, depth=depth)
    )
    assert replayed == live
    assert 1.05 < summarize(cycle for cycles in live for cycle in cycles).acceptance_length < depth + 1


def test_replay_counts_cuts_by_stops_and_limits_as_the_engine_does(
    decoder: TargetDecoder, source: DraftSource
) -> None:
    limits = [1, 2, 3, 5, 8, 13, 21, 24, 24, 24]
    plain = make_engine(decoder).generate(make_requests([NEW_TOKENS] * 10)).generations
    stop_ids = tuple({plain[7].answer_ids[9], plain[8].answer_ids[5], plain[9].answer_ids[0]})
    engine = make_engine(decoder, stop_ids, max_batch_size=4)
    for depth in (1, 3, min(DEPTH, source.max_depth or DEPTH)):
        replayed, live = cycles_of(engine, make_requests(limits), DraftSetting(source=source, depth=depth))
        assert replayed == live
        assert live[0] == ()


def test_an_answer_without_features_cannot_be_replayed(decoder: TargetDecoder, source: DraftSource) -> None:
    requests = make_requests([4] * 10)
    plain = make_engine(decoder).generate(requests).generations
    with pytest.raises(DataError, match="'r0' has no captured features"):
        replay_generations(DraftSetting(source=source, depth=2), requests, plain)
