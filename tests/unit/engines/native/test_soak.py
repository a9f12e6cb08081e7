"""Requests of every kind, many withdrawn and some malformed, come and go: nothing is lost, nothing leaks."""

import gc
import random
from dataclasses import replace

import pytest
import torch

from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.errors import EngineError
from eagleray.speculation.config import LogitAdjustments, SamplingConfig
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.embedded import prepare_embedded

CONTEXT_TOKENS = 512


def scarce(decoder: TargetDecoder) -> NativeEngineConfig:
    """So little of everything that requests wait, prompts come in pieces, and kept blocks are given up
    again."""
    shape = decoder.geometry
    position_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * decoder.dtype.itemsize
    return NativeEngineConfig(
        max_batch_size=6,
        context_window_tokens=CONTEXT_TOKENS,
        prefill_tokens_per_cycle=64,
        kv_cache_gib=4 * 528 * position_bytes / 2**30,
        prefix_cache_gib=20 * 64 * position_bytes / 2**30,
    )


def show(ids):
    return "".join(chr(0x20000 + token) for token in ids)


class Traffic:
    """Random requests, well-formed ones and others."""

    def __init__(self, seed: int, vocab_size: int):
        self.random = random.Random(seed)
        self._vocab_size = vocab_size
        self._beginnings = [self._ids(70), self._ids(200)]

    def well_formed(self, number: int) -> GenerationRequest:
        chance = self.random
        beginning = chance.choice([(), (), (), *self._beginnings])
        length = chance.choice([1, 1, 2, 5, 20, 60, 130, CONTEXT_TOKENS - 1 - len(beginning)])
        return GenerationRequest(
            request_id=f"r{number}",
            prompt_ids=beginning + self._ids(length),
            max_new_tokens=chance.choice([1, 2, 8, 30, 1000 if length > 200 else 40]),
            sampling=SamplingConfig(
                temperature=chance.choice([0.0, 0.0, 0.7, 1.5]), top_k=chance.choice([None, 5])
            ),
            seed=number,
            stop_strings=chance.choice([(), (), (show([chance.randrange(self._vocab_size)]),)]),
            adjustments=chance.choice(
                [None, None, LogitAdjustments(frequency_penalty=1.0, logit_bias={3: -50.0}, min_new_tokens=2)]
            ),
            log_probabilities=chance.choice([None, None, 0, 4]),
        )

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(self._vocab_size) for _ in range(count))

    def malformed(self, number: int) -> GenerationRequest:
        wrong = [
            {"prompt_ids": ()},
            {"prompt_ids": (self._vocab_size,)},
            {"prompt_ids": (1,) * CONTEXT_TOKENS},
            {"max_new_tokens": 0},
            {"stop_strings": ("",)},
            {"log_probabilities": -1},
            {"adjustments": LogitAdjustments(logit_bias={self._vocab_size: 1.0})},
        ]
        return replace(self.well_formed(number), **self.random.choice(wrong))


class Repeating:
    """Drafts the last token again and again: sometimes right, mostly not."""

    tapped_layers = (1,)
    max_depth = None

    def open_session(self, max_rows, max_length):
        return RepeatingSession(max_rows)


class RepeatingSession:
    def __init__(self, max_rows):
        self.last = [0] * max_rows

    def observe(self, committed):
        rows, counts = committed.rows_B.tolist(), committed.counts_B.tolist()
        for row, ids, count in zip(rows, committed.next_ids_BQ.tolist(), counts, strict=True):
            self.last[row] = ids[count - 1]

    def draft(self, num_rows, depth):
        return torch.tensor([[token] * depth for token in self.last[:num_rows]])

    def reset(self, row):
        self.last[row] = 0

    def move(self, source, destination):
        self.last[destination] = self.last[source]


def live_tensors() -> int:
    gc.collect()
    return sum(torch.is_tensor(thing) for thing in gc.get_objects())


@pytest.fixture
def embedded_decoder() -> TargetDecoder:
    return TargetDecoder.load(prepare_embedded(), torch.float32)


@pytest.mark.parametrize(
    ("target", "requests", "adaptive"),
    [
        ("long_decoder", 120, False),
        ("long_decoder", 120, True),
        pytest.param("long_decoder", 1900, True, marks=pytest.mark.slow),
        pytest.param("embedded_decoder", 100, True, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_everything_well_formed_is_answered_and_nothing_is_left(request, target, requests, adaptive):
    decoder = request.getfixturevalue(target)
    settings, vocab_size = scarce(decoder), decoder.geometry.vocab_size
    engine = NativeEngine(decoder, settings, (7,), show)
    stream = engine.open_stream(draft=DraftSetting(source=Repeating(), depth=3, adaptive=adaptive))
    traffic, chance = Traffic(0, vocab_size), random.Random(1)
    asked, answered, withdrawn, refused, tensors = {}, {}, set(), 0, []
    for number in range(requests):
        if chance.random() < 0.15:
            with pytest.raises(EngineError):
                stream.submit(traffic.malformed(number))
            refused += 1
        else:
            one = traffic.well_formed(number)
            stream.submit(one)
            asked[one.request_id] = one
        if chance.random() < 0.1:
            victim = chance.choice(sorted(asked.keys() - answered.keys() - withdrawn) or ["nobody"])
            stream.cancel(victim)
            withdrawn |= {victim} & asked.keys()
        while stream.unfinished > chance.choice([2, 8, 12]):
            answered |= {one.request_id: one for one in stream.advance()}
        if number in (requests // 2, requests - 1):
            while stream.unfinished:
                answered |= {one.request_id: one for one in stream.advance()}
            answered = {name: replace(one, captured=None) for name, one in answered.items()}
            tensors.append(live_tensors() - 3 * len(stream._prompts.kept._blocks))
    assert answered.keys() == asked.keys() - withdrawn
    assert refused > requests // 20
    assert tensors[1] <= tensors[0] + 5
    assert stream._prompts.kept._bytes <= settings.prefix_cache_gib * 2**30
    assert sum(one.reused_prompt_tokens for one in answered.values()) > 0
    assert stream._slots.free == 6
    assert set(stream._slots.cache.lengths) == {0}
    for name, one in answered.items():
        assert 1 <= len(one.answer_ids) <= asked[name].max_new_tokens
        assert len(one.prompt_ids) + len(one.answer_ids) <= CONTEXT_TOKENS
        assert one.scores is None or len(one.scores) == len(one.answer_ids)
        ended = one.answer_ids[-1] == 7 or one.stop_string is not None
        assert one.finish_reason == ("stop" if ended else "length")
