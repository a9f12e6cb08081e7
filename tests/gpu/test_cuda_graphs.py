"""Decode steps as CUDA graphs on a real device: replayed, and with the answers of eager steps."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.engines.base import DraftSetting, GenerationRequest, GenerationRun
from eagleray.engines.native import engine as engine_module
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.native.graphs import EAGER_STEPS, CudaRecorder, Outputs, StepGraphs, graphs_for
from eagleray.speculation.config import SamplingConfig, TreeSetting
from eagleray.targets.decoder import TargetDecoder
from tests.unit.engines.native.conftest import VOCAB_SIZE, random_requests, save_tiny

pytestmark = pytest.mark.gpu

CONTEXT_TOKENS = 512


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TargetDecoder:
    _, folder = save_tiny(tmp_path_factory.mktemp("tiny"), CONTEXT_TOKENS)
    return TargetDecoder.load(folder, request.param, "cuda")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[StepGraphs]:
    """Lists the graphs of every stream that has them."""
    kept: list[StepGraphs] = []

    def listed(decoder: TargetDecoder, config: NativeEngineConfig) -> StepGraphs | None:
        graphs = graphs_for(decoder, config)
        if graphs is not None:
            kept.append(graphs)
        return graphs

    monkeypatch.setattr(engine_module, "graphs_for", listed)
    return kept


def requests(*lengths: int) -> list[GenerationRequest]:
    return [
        replace(request, seed=place, sampling=SamplingConfig(temperature=float(place % 2)))
        for place, request in enumerate(random_requests(list(lengths), 40))
    ]


def answer(
    decoder: TargetDecoder,
    asked: list[GenerationRequest],
    draft: DraftSetting | None = None,
    *,
    graphs: bool,
) -> GenerationRun:
    engine = NativeEngine(decoder, NativeEngineConfig(cuda_graphs=graphs, max_batch_size=5), ())
    return engine.generate(asked, draft=draft)


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("tree", [False, True])
def test_a_replayed_step_computes_what_an_eager_one_does(
    decoder: TargetDecoder, rows: int, queries: int, tree: bool
) -> None:
    lengths = [90, 5, 30, 60]
    cache = decoder.new_cache(8, CONTEXT_TOKENS)
    decoder.prefill(torch.arange(sum(lengths), device="cuda") % VOCAB_SIZE, lengths, cache, 0)
    graphs = StepGraphs(decoder, CudaRecorder())
    ancestry_BQQ = None
    if tree:
        # Every node is a child of the anchor.
        star_QQ = torch.eye(queries, dtype=torch.bool, device="cuda")
        star_QQ[:, 0] = True
        ancestry_BQQ = star_QQ.repeat(rows, 1, 1)
    generator = torch.Generator("cuda").manual_seed(0)
    loose = 1e-4 if decoder.dtype == torch.float32 else 0.15
    for cycle in range(EAGER_STEPS + 4):
        ids_BQ = torch.randint(0, VOCAB_SIZE, (rows, queries), generator=generator, device="cuda")
        seen = graphs.step(ids_BQ, cache, (0, 2), ancestry_BQQ)
        expected = decoder.step(ids_BQ, cache, (0, 2), ancestry_BQQ)
        for one, other in zip(seen, expected, strict=True):
            assert one.shape == other.shape
            torch.testing.assert_close(one.float(), other.float(), atol=loose, rtol=loose)
        for row in range(rows):
            cache.advance(row, 1)
        assert graphs.replays == max(0, cycle + 1 - EAGER_STEPS)
    assert graphs.recordings == 1


# Below float32, logits that tie to rounding may fall either way.
@pytest.mark.parametrize("decoder", [torch.float32], ids=["float32"], indirect=True)
@pytest.mark.parametrize("tree", [None, TreeSetting(top_k=3, nodes=6)])
@pytest.mark.parametrize("drafted", [False, True])
def test_answers_are_those_of_eager_steps(
    decoder: TargetDecoder, made: list[StepGraphs], drafted: bool, tree: TreeSetting | None
) -> None:
    torch.manual_seed(3)
    drafter = build_trainable_drafter(
        Eagle3Config(draft_vocab_size=64), decoder.heads, torch.arange(VOCAB_SIZE) % 2
    ).to("cuda")
    draft = DraftSetting(source=drafter, depth=3, tree=tree) if drafted else None
    asked = requests(5, 70, 9, 3, 200, 7, 2, 20)
    eager, recorded = (answer(decoder, asked, draft, graphs=graphs) for graphs in (False, True))
    assert [one.answer_ids for one in recorded.generations] == [one.answer_ids for one in eager.generations]
    (graphs,) = made
    assert graphs.replays > 40
    assert graphs.recordings < graphs.replays


def test_what_cannot_be_captured_is_run_as_it_is(
    decoder: TargetDecoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Waiting(CudaRecorder):
        """Waits for the device within what is recorded, which no graph can hold."""

        def record(self, run: Callable[[], Outputs]):
            def waiting() -> Outputs:
                outputs = run()
                outputs[1].sum().item()
                return outputs

            return super().record(waiting)

    monkeypatch.setattr(engine_module, "graphs_for", lambda decoder, _: StepGraphs(decoder, Waiting()))
    asked = requests(5, 9)
    stream = torch.cuda.current_stream()
    with caplog.at_level(logging.WARNING):
        seen = answer(decoder, asked, graphs=True)
    assert "without CUDA graphs" in caplog.text
    assert torch.cuda.current_stream() == stream
    monkeypatch.undo()
    expected = answer(decoder, asked, graphs=False)
    assert [one.answer_ids for one in seen.generations] == [one.answer_ids for one in expected.generations]


def test_a_replayed_step_calls_few_operators(tmp_path: Path) -> None:
    """The profiler counts calls of operators: a replay needs those that fill its buffers alone."""
    _, folder = save_tiny(tmp_path, CONTEXT_TOKENS)
    decoder = TargetDecoder.load(folder, torch.bfloat16, "cuda")
    calls = []
    for step in (decoder.step, StepGraphs(decoder, CudaRecorder()).step):
        cache = decoder.new_cache(4, CONTEXT_TOKENS)
        with torch.inference_mode():
            decoder.prefill(torch.arange(40, device="cuda"), [10] * 4, cache, 0)
            ids_B1 = torch.ones(4, 1, dtype=torch.int64, device="cuda")
            for _ in range(EAGER_STEPS + 2):
                step(ids_B1, cache)
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                step(ids_B1, cache)
        calls.append(sum(event.count for event in profile.key_averages() if "aten::" in event.key))
    eager, graphed = calls
    assert graphed < eager / 4
