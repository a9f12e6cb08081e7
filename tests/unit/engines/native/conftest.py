"""A tiny random target, its plain greedy answers, and drafters made by hand from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eagleray.drafters.base import DraftSession, DraftSource
from eagleray.engines.base import Generation, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.targets.decoder import TargetDecoder

VOCAB_SIZE = 300
CONTEXT_TOKENS = 64
LONG_CONTEXT_TOKENS = 512


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of transformers, and the folder it was saved to."""
    return save_tiny(tmp_path_factory.mktemp("tiny"), CONTEXT_TOKENS)


@pytest.fixture(scope="session")
def long_decoder(tmp_path_factory: pytest.TempPathFactory) -> TargetDecoder:
    """A tiny target for prompts of several blocks, with the same bits in any company."""
    _, folder = save_tiny(tmp_path_factory.mktemp("long"), LONG_CONTEXT_TOKENS)
    return TargetDecoder.load(folder, torch.float32, batch_invariant=True)


def save_tiny(folder: Path, context_tokens: int) -> tuple[Any, Path]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=context_tokens,
        initializer_range=0.2,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="session")
def decoder(tiny_model: tuple[Any, Path]) -> TargetDecoder:
    return TargetDecoder.load(tiny_model[1], torch.float32)


@pytest.fixture(scope="session")
def make_engine(decoder: TargetDecoder) -> Callable[..., NativeEngine]:
    def make(stop_token_ids: tuple[int, ...] = (), **settings: Any) -> NativeEngine:
        return NativeEngine(decoder, NativeEngineConfig(**settings), stop_token_ids)

    return make


def random_requests(lengths: list[int], max_new_tokens: int) -> list[GenerationRequest]:
    generator = torch.Generator().manual_seed(7)
    return [
        GenerationRequest(
            request_id=f"r{index}",
            prompt_ids=tuple(torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist()),
            max_new_tokens=max_new_tokens,
        )
        for index, length in enumerate(lengths)
    ]


class ScriptedSession(DraftSession):
    """Knows a row by the tokens it was told, and looks up how its script goes on."""

    def __init__(self, scripts: list[tuple[int, ...]], wrong_slots: frozenset[int], max_rows: int):
        self._scripts = scripts
        self._wrong_slots = wrong_slots
        self._seen: list[tuple[int, ...]] = [() for _ in range(max_rows)]

    def observe(self, committed):
        rows, counts = committed.rows_B.tolist(), committed.counts_B.tolist()
        for row, ids, count in zip(rows, committed.next_ids_BQ.tolist(), counts, strict=True):
            self._seen[row] += tuple(ids[:count])

    def draft(self, num_rows, depth):
        proposals = [self._go_on(seen, depth) for seen in self._seen[:num_rows]]
        return torch.tensor(
            [
                [
                    (token + 1) % VOCAB_SIZE if slot in self._wrong_slots else token
                    for slot, token in enumerate(ids)
                ]
                for ids in proposals
            ]
        )

    def _go_on(self, seen: tuple[int, ...], depth: int) -> list[int]:
        script = next(script for script in self._scripts if script[: len(seen)] == seen)
        ahead = script[len(seen) : len(seen) + depth]
        return [*ahead, *[0] * (depth - len(ahead))]

    def reset(self, row):
        self._seen[row] = ()

    def move(self, source, destination):
        self._seen[destination] = self._seen[source]


class Scripted(DraftSource):
    """SELF with no wrong slot, MIX(j) with slot j wrong, NEVER with all of them wrong."""

    tapped_layers: tuple[int, ...] = ()
    max_depth = None

    def __init__(self, answers: tuple[Generation, ...], wrong_slots: frozenset[int] = frozenset()):
        # A drafter is never told the first token of a prompt.
        self.scripts = [(*answer.prompt_ids[1:], *answer.answer_ids) for answer in answers]
        self.wrong_slots = wrong_slots

    def open_session(self, max_rows, max_length):
        return ScriptedSession(self.scripts, self.wrong_slots, max_rows)


@pytest.fixture(scope="session")
def make_requests() -> Callable[[list[int], int], list[GenerationRequest]]:
    """Requests with random prompts of the given lengths."""
    return random_requests


@pytest.fixture(scope="session")
def scripted() -> type[Scripted]:
    """Drafters by hand."""
    return Scripted
