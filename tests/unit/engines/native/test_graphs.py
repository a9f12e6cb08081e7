"""Recorded steps give the answers of steps that run as they are: buffers, padding and places are right.

In place of a CUDA graph stands a recorder that runs the recorded work again, on the same buffers.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eagleray.drafters.base import TrainableDrafter
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.engines.base import DraftSetting, GenerationRequest, GenerationRun
from eagleray.engines.catalog import settings_in_use
from eagleray.engines.native import engine as engine_module
from eagleray.engines.native import graphs as graphs_module
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.native.graphs import (
    EAGER_STEPS,
    MOST_TOKENS,
    Outputs,
    Recording,
    StepGraphs,
    StepShape,
    graphs_for,
    power_of_two,
)
from eagleray.errors import ConfigError
from eagleray.speculation.config import SamplingConfig, TreeSetting
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.kernels import step
from eagleray.targets.kv_cache import KVCache
from tests.unit.engines.native.conftest import VOCAB_SIZE, random_requests

PROMPT_LENGTHS = [5, 1, 9, 3, 12, 7, 2, 20, 4]
NEW_TOKENS = 20


class Rerun:
    """Runs the recorded work again, and leaves what it gives where the first run left it.

    Like a CUDA graph it knows the addresses it was recorded with: where `watched` has moved, a replay fails.
    """

    def __init__(self) -> None:
        self.watched: KVCache | None = None
        self.forgotten = 0

    def record(self, run: Callable[[], Outputs]) -> Recording:
        outputs, addresses = run(), self._addresses()

        def replay() -> None:
            assert self._addresses() == addresses, "the cache was moved under a recording"
            for kept, new in zip(outputs, run(), strict=True):
                kept.copy_(new)

        return Recording(outputs, replay)

    def forget(self) -> None:
        self.forgotten += 1

    def _addresses(self) -> list[int]:
        cache = self.watched
        return [tensor.data_ptr() for tensor in (*cache.keys, *cache.values)] if cache else []


class Refusing:
    """Cannot record."""

    def __init__(self) -> None:
        self.asked = 0

    def record(self, run: Callable[[], Outputs]) -> Recording:
        self.asked += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    def forget(self) -> None:
        """Has nothing to forget."""


@pytest.fixture(autouse=True)
def without_compiled_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(step, "fits", lambda *_: False)


@pytest.fixture
def exact_decoder(tiny_model: tuple[Any, Path]) -> TargetDecoder:
    return TargetDecoder.load(tiny_model[1], torch.float32, batch_invariant=True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[StepGraphs]:
    """Gives every stream recorded steps, and lists them."""
    all_graphs: list[StepGraphs] = []

    def with_rerun(decoder: TargetDecoder, config: NativeEngineConfig) -> StepGraphs | None:
        if config.cuda_graphs:
            all_graphs.append(StepGraphs(decoder, Rerun()))
        return all_graphs[-1] if config.cuda_graphs else None

    monkeypatch.setattr(engine_module, "graphs_for", with_rerun)
    return all_graphs


def eagle3(decoder: TargetDecoder) -> TrainableDrafter:
    torch.manual_seed(3)
    return build_trainable_drafter(
        Eagle3Config(draft_vocab_size=64), decoder.heads, torch.arange(VOCAB_SIZE) % 2
    )


def answer(
    decoder: TargetDecoder,
    requests: list[GenerationRequest],
    draft: DraftSetting | None = None,
    capture_layers: tuple[int, ...] | None = None,
    *,
    graphs: bool,
    **settings: Any,
) -> GenerationRun:
    config = NativeEngineConfig(cuda_graphs=graphs, prefix_cache_gib=0, **settings)
    engine = NativeEngine(decoder, config, ())
    return engine.generate(requests, draft=draft, capture_layers=capture_layers)


def mixed_requests() -> list[GenerationRequest]:
    """Greedy and drawn answers, of lengths that make rows leave and join at different times."""
    return [
        replace(
            request,
            max_new_tokens=NEW_TOKENS - 2 * (place % 4),
            seed=place,
            sampling=SamplingConfig(temperature=0.0 if place % 2 else 1.0),
        )
        for place, request in enumerate(random_requests(PROMPT_LENGTHS, NEW_TOKENS))
    ]


@pytest.mark.parametrize("max_batch_size", [1, 3, 6])
def test_plain_answers_and_features_are_those_of_eager_steps_bit_for_bit(
    exact_decoder: TargetDecoder, made: list[StepGraphs], max_batch_size: int
) -> None:
    runs = [
        answer(
            exact_decoder,
            mixed_requests(),
            capture_layers=(0, 2),
            graphs=graphs,
            max_batch_size=max_batch_size,
        )
        for graphs in (False, True)
    ]
    for eager, recorded in zip(*(run.generations for run in runs), strict=True):
        assert recorded.answer_ids == eager.answer_ids
        assert recorded.captured is not None
        assert eager.captured is not None
        assert torch.equal(recorded.captured.features_TLD, eager.captured.features_TLD)
        assert torch.equal(recorded.captured.final_TD, eager.captured.final_TD)
    (graphs,) = made
    assert graphs.replays > NEW_TOKENS
    assert 0 < graphs.recordings < graphs.replays


@pytest.mark.parametrize("tree", [None, TreeSetting(top_k=3, nodes=6)])
@pytest.mark.parametrize("adaptive", [False, True])
def test_answers_with_eagle3_are_those_of_eager_steps(
    exact_decoder: TargetDecoder, made: list[StepGraphs], tree: TreeSetting | None, adaptive: bool
) -> None:
    draft = DraftSetting(source=eagle3(exact_decoder), depth=3, tree=tree, adaptive=adaptive)
    plain = answer(exact_decoder, mixed_requests(), graphs=False)
    eager, recorded = (
        answer(exact_decoder, mixed_requests(), draft, graphs=graphs, max_batch_size=5)
        for graphs in (False, True)
    )
    for one, other, third in zip(recorded.generations, eager.generations, plain.generations, strict=True):
        assert one.answer_ids == other.answer_ids == third.answer_ids
        # How deep an adaptive cycle drafts depends on the clock.
        assert adaptive or one.cycles == other.cycles
    assert made[0].replays > 0


@pytest.mark.parametrize("wrong_slots", [frozenset(), frozenset({1}), frozenset(range(4))])
def test_accepted_and_refused_drafts_leave_the_cache_as_eager_steps_do(
    exact_decoder: TargetDecoder, made: list[StepGraphs], scripted: Any, wrong_slots: frozenset[int]
) -> None:
    requests = random_requests(PROMPT_LENGTHS, NEW_TOKENS)
    plain = answer(exact_decoder, requests, graphs=False).generations
    draft = DraftSetting(source=scripted(plain, wrong_slots), depth=4)
    recorded = answer(exact_decoder, requests, draft, graphs=True, max_batch_size=4)
    assert [one.answer_ids for one in recorded.generations] == [one.answer_ids for one in plain]
    accepted = [cycle.accepted for one in recorded.generations for cycle in one.cycles]
    assert max(accepted) == {0: 4, 1: 1, 4: 0}[len(wrong_slots)]
    assert made[0].replays > 0


def test_padding_leaves_a_prompt_alone_that_comes_in_pieces(
    long_decoder: TargetDecoder, made: list[StepGraphs]
) -> None:
    """Three short answers decode in a recording of four rows, while a long prompt fills the fourth."""
    short = random_requests([5, 6, 7], 60)
    (long,) = random_requests([330], 12)
    long = replace(long, request_id="long")
    answers = []
    for graphs in (False, True):
        config = NativeEngineConfig(
            cuda_graphs=graphs, prefix_cache_gib=0, max_batch_size=4, prefill_tokens_per_cycle=64
        )
        stream = NativeEngine(long_decoder, config, ()).open_stream(capture_layers=(2,))
        for request in short:
            stream.submit(request)
        found: dict[str, Any] = {}
        for cycle in range(200):
            if cycle == 6:
                stream.submit(long)
            found.update({one.request_id: one for one in stream.advance()})
        answers.append(found)
    eager, recorded = answers
    assert set(recorded) == set(eager) == {"r0", "r1", "r2", "long"}
    for name, one in recorded.items():
        assert one.answer_ids == eager[name].answer_ids
        torch.testing.assert_close(
            one.captured.features_TLD, eager[name].captured.features_TLD, atol=1e-4, rtol=0
        )
    assert made[0].replays > 40


def prefilled(decoder: TargetDecoder, lengths: list[int], **bounds: Any) -> KVCache:
    cache = decoder.new_cache(bounds.pop("max_rows", 8), bounds.pop("max_length", 64), **bounds)
    ids_T = torch.arange(sum(lengths)) % VOCAB_SIZE
    decoder.prefill(ids_T, lengths, cache, 0)
    return cache


@torch.inference_mode()
def test_a_step_writes_nowhere_but_after_what_rows_hold(exact_decoder: TargetDecoder) -> None:
    lengths = [5, 11, 3, 30]
    cache = prefilled(exact_decoder, lengths)
    cache.reserve(4, 64)
    before = [tensor.clone() for tensor in (*cache.keys, *cache.values)]
    graphs = StepGraphs(exact_decoder, Rerun())
    ids_BQ = torch.tensor([[1, 2], [3, 4], [5, 6]])
    for _ in range(EAGER_STEPS + 2):
        graphs.step(ids_BQ, cache)
    assert graphs.replays == 2
    for old, new in zip(before, (*cache.keys, *cache.values), strict=True):
        for row, length in enumerate(lengths):
            assert torch.equal(old[row, :, :length], new[row, :, :length])
            assert torch.equal(old[row, :, length + 2 :], new[row, :, length + 2 :])


@torch.inference_mode()
def test_a_shape_is_recorded_once_and_outputs_are_the_callers_own(exact_decoder: TargetDecoder) -> None:
    cache = prefilled(exact_decoder, [5, 11, 3])
    graphs = StepGraphs(exact_decoder, Rerun())
    steps = [graphs.step(torch.full((3, 1), token), cache) for token in range(EAGER_STEPS + 4)]
    assert (graphs.recordings, graphs.replays) == (1, 4)
    for token, seen in enumerate(steps):
        expected = exact_decoder.step(torch.full((3, 1), token), cache)
        assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))


@torch.inference_mode()
def test_recordings_are_made_anew_when_the_cache_moves(exact_decoder: TargetDecoder) -> None:
    cache, recorder = prefilled(exact_decoder, [5, 11]), Rerun()
    recorder.watched = cache
    graphs = StepGraphs(exact_decoder, recorder)
    ids_B1 = torch.tensor([[1], [2]])
    for _ in range(EAGER_STEPS + 2):
        graphs.step(ids_B1, cache)
    exact_decoder.prefill(torch.arange(40), [8] * 5, cache, 2)
    forgotten = recorder.forgotten
    _, seen = graphs.step(ids_B1, cache)
    assert torch.equal(seen, exact_decoder.step(ids_B1, cache)[1])
    assert recorder.forgotten == forgotten + 1
    assert graphs.recordings == 2


@torch.inference_mode()
def test_rows_that_move_in_the_cache_are_followed(exact_decoder: TargetDecoder) -> None:
    cache = prefilled(exact_decoder, [5, 11, 20])
    graphs = StepGraphs(exact_decoder, Rerun())
    for _ in range(EAGER_STEPS + 1):
        graphs.step(torch.tensor([[1], [2], [3]]), cache)
    cache.move(2, 0)
    _, seen = graphs.step(torch.tensor([[3], [2], [1]]), cache)
    assert graphs.replays == 2
    assert torch.equal(seen, exact_decoder.step(torch.tensor([[3], [2], [1]]), cache)[1])


def test_where_nothing_can_be_recorded_answers_are_the_same_and_a_line_says_why(
    exact_decoder: TargetDecoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Refusing()
    monkeypatch.setattr(engine_module, "graphs_for", lambda decoder, _: StepGraphs(decoder, recorder))
    seen = answer(exact_decoder, mixed_requests(), graphs=True)
    monkeypatch.undo()
    expected = answer(exact_decoder, mixed_requests(), graphs=False)
    assert [one.answer_ids for one in seen.generations] == [one.answer_ids for one in expected.generations]
    assert recorder.asked == 1
    assert "without CUDA graphs" in caplog.text
    assert "not permitted when stream is capturing" in caplog.text


def test_seldom_used_recordings_make_room(
    exact_decoder: TargetDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs_module, "MOST_RECORDINGS", 2)
    cache = prefilled(exact_decoder, [5])
    graphs = StepGraphs(exact_decoder, Rerun())
    with torch.inference_mode():
        for queries in (1, 2, 3):
            for _ in range(EAGER_STEPS + 1):
                graphs.step(torch.ones(1, queries, dtype=torch.int64), cache)
        for queries, recorded in ((3, 3), (2, 3), (1, 4)):
            graphs.step(torch.ones(1, queries, dtype=torch.int64), cache)
            assert graphs.recordings == recorded


def test_a_window_that_slides_is_refused_here_too(exact_decoder: TargetDecoder) -> None:
    cache = prefilled(exact_decoder, [20])
    graphs = StepGraphs(exact_decoder, Rerun())
    with torch.inference_mode():
        for _ in range(EAGER_STEPS + 1):
            graphs.step(torch.tensor([[1]]), cache)
    slides = TargetDecoder.__new__(TargetDecoder)
    slides.__dict__.update(exact_decoder.__dict__)
    slides.geometry = replace(exact_decoder.geometry, sliding_window=20)
    graphs._decoder = slides
    with pytest.raises(ConfigError, match="slides its attention"), torch.inference_mode():
        graphs.step(torch.tensor([[1]]), cache)


def shape_of(cache: KVCache, rows: int, queries: int) -> StepShape | None:
    return StepShape.of(torch.zeros(rows, queries, dtype=torch.int64), cache, (), tree=False)


def test_shapes_are_the_least_that_hold_a_step(exact_decoder: TargetDecoder) -> None:
    cache = prefilled(exact_decoder, [5, 11, 3, 150], max_length=300, max_rows=6)
    assert shape_of(cache, 2, 4) == StepShape(2, 4, 128, (), tree=False)
    # The fourth row is padding, and is read to its own end.
    assert shape_of(cache, 3, 4) == StepShape(4, 4, 256, (), tree=False)
    # Neither more rows than the cache may have, nor more positions.
    assert shape_of(cache, 5, 1) == StepShape(6, 1, 256, (), tree=False)
    cache.lengths[0] = 290
    assert shape_of(cache, 1, 3) == StepShape(1, 3, 304, (), tree=False)
    assert shape_of(cache, 1, 15) is None
    assert shape_of(cache, 4, MOST_TOKENS // 4 + 1) is None


def test_padding_never_takes_room_that_is_held_or_forbidden(exact_decoder: TargetDecoder) -> None:
    cache = prefilled(exact_decoder, [100, 100, 100], max_length=512, max_positions=3 * 160)
    assert not cache.fits(4, 128)
    assert cache.fits(3, 160)
    assert not cache.fits(3, 176)
    assert shape_of(cache, 3, 1) is None
    assert shape_of(cache, 2, 1) == StepShape(2, 1, 128, (), tree=False)
    before = [tensor[:3, :, :100].clone() for tensor in cache.keys]
    cache.reserve(2, 128)
    assert all(torch.equal(old, new[:3, :, :100]) for old, new in zip(before, cache.keys, strict=True))


def test_answers_under_a_scarce_cache_are_the_same(
    exact_decoder: TargetDecoder, made: list[StepGraphs]
) -> None:
    shape = exact_decoder.geometry
    position_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 4
    scarce = {"kv_cache_gib": 3 * 64 * position_bytes / 2**30, "max_batch_size": 4}
    eager, recorded = (
        answer(exact_decoder, mixed_requests(), graphs=graphs, **scarce) for graphs in (False, True)
    )
    assert [one.answer_ids for one in recorded.generations] == [one.answer_ids for one in eager.generations]
    assert made[0].replays > 0


def test_a_cpu_has_no_graphs(exact_decoder: TargetDecoder) -> None:
    assert graphs_for(exact_decoder, NativeEngineConfig()) is None


@pytest.mark.parametrize(
    ("on_gpu", "setting", "recorded"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_the_regime_says_whether_graphs_are_in_use(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool, setting: bool, recorded: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    config = NativeEngineConfig(cuda_graphs=setting, max_batch_size=7)
    told = settings_in_use(config)
    assert told["cuda_graphs"] is recorded
    assert {**told, "cuda_graphs": setting, "name": "native"} == config.model_dump(mode="json")


def test_the_next_power_of_two() -> None:
    assert [power_of_two(number) for number in (1, 2, 3, 4, 5, 33)] == [1, 2, 4, 4, 8, 64]
