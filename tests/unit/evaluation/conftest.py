"""A pretend engine whose speed and acceptance are known, and a whole evaluation made with it."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from eagleray.corpus.accounting import Extent, LengthQuantiles, TruncationAccount, account
from eagleray.corpus.chat import RenderedPrompt
from eagleray.corpus.prompt import user_prompt
from eagleray.corpus.summary import CategorySummary, DatasetSummary
from eagleray.drafters.base import DraftSession, DraftSource
from eagleray.engines.base import DraftSetting, EngineTimes, Generation, GenerationRequest, GenerationRun
from eagleray.evaluation.aggregate import RunFacts, TrainingFacts, build_report
from eagleray.evaluation.config import BootstrapConfig, EvaluationConfig
from eagleray.evaluation.measure import Bench, run_unit
from eagleray.evaluation.regime import Machine, Regime
from eagleray.evaluation.units import plan_units
from eagleray.evaluation.workloads import describe_workloads
from eagleray.speculation.acceptance import Cycle

DATASET = DatasetSummary(
    planned_rows=1200,
    answered_prompts=1198,
    rejected_rows=2,
    rows=1198,
    planned_shards=38,
    shards=38,
    damaged_shards={},
    size_bytes=2**20,
    tokens=90_000,
    supervised_tokens=30_000,
    supervised_ratio=1 / 3,
    duplicate_ids=0,
    lengths=LengthQuantiles(p50=40, p95=61, p99=70, longest=70),
    length_histogram={"17-32": 398, "33-48": 500, "49-64": 0, "65-80": 300},
    categories={"code": CategorySummary(rows=1198, tokens=90_000, supervised_tokens=30_000, cut_answers=7)},
    answer_origins={"target": 1198},
    mismatched_ratio=0.0,
    finish_reasons={"stop": 1191, "length": 7},
    rejects_by_reason={"the prompt has N tokens; at most N fit": 2},
)

MACHINE = Machine(
    cpu_model="test", cores=2, threads=1, accelerator="none", torch_version="2", kernels="torch"
)


class PretendSource(DraftSource):
    """A drafter whose first `good` tokens of every draft are right."""

    tapped_layers = ()
    max_depth = None

    def __init__(self, good: int, draft_s: float = 0.25):
        self.good = good
        self.draft_s = draft_s

    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        raise AssertionError("the pretend engine opens no session")


class PretendEngine:
    """Counts on from the prompt's last id. A verification takes 1 s, host work none."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[str, ...], int, DraftSource | None, int]] = []

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        draft: DraftSetting | None = None,
        capture_layers: tuple[int, ...] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> GenerationRun:
        depth = draft.depth if draft else 0
        new_tokens = requests[0].max_new_tokens
        names = tuple(request.request_id for request in requests)
        self.calls.append((names, new_tokens, draft.source if draft else None, depth))
        generations = tuple(self._generation(request, draft) for request in requests)
        cycles = sum(len(generation.cycles) for generation in generations)
        if on_progress:
            on_progress(sum(len(generation.answer_ids) for generation in generations))
        draft_s = draft.source.draft_s * cycles if draft else 0.0  # type: ignore[attr-defined]
        times = EngineTimes(prefill_s=9.0, draft_s=draft_s, verify_s=float(cycles), host_s=0.0)
        return GenerationRun(generations=generations, times=times)

    def _generation(self, request: GenerationRequest, draft: DraftSetting | None) -> Generation:
        first = request.prompt_ids[-1] + 1
        left = request.max_new_tokens - 1
        cycles = []
        while left:
            good = min(draft.source.good, draft.depth) if draft else 0  # type: ignore[attr-defined]
            accepted = min(good, left)
            delivered = min(good + 1, left)
            cycles.append(Cycle(draft.depth if draft else 0, accepted, delivered))
            left -= delivered
        return Generation(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            answer_ids=tuple(range(first, first + request.max_new_tokens)),
            finish_reason="length",
            cycles=tuple(cycles),
        )


class PretendReference:
    """Agrees with the pretend engine."""

    def generate(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> tuple[int, ...]:
        return tuple(range(prompt_ids[-1] + 1, prompt_ids[-1] + 1 + max_new_tokens))


def make_prompts(family: str, count: int) -> tuple[RenderedPrompt, ...]:
    """Prompts of a family whose ids differ."""
    return tuple(
        RenderedPrompt(
            prompt=user_prompt(f"{family} {index}", category=family, source="test", licence="CC0-1.0"),
            prompt_ids=(1, 2, 100 * index),
        )
        for index in range(count)
    )


def make_regime(**changes: Any) -> Regime:
    """A complete regime."""
    return Regime(
        **{
            "machine": MACHINE,
            "workers": 1,
            "engine": "pretend",
            "engine_version": "0",
            "engine_settings": {},
            "dtype": "float32",
            "target_hash": "t",
            "drafter_hashes": {"good": "g", "bad": "b"},
            "template_hash": "c",
            "workload_hash": "w",
            "acceptance_concurrency": 4,
            "max_new_tokens": 13,
            "timing_new_tokens": 13,
            **changes,
        }
    )


def _row(start: int, end: int) -> Extent:
    return Extent(category="code", tokens=end, supervised=((start, end),))


def truncation() -> TruncationAccount:
    """The account of two rows, the second 6 tokens too long."""
    found = account([_row(8, 20), _row(30, 70)], 64)
    assert found is not None
    return found


@pytest.fixture
def pretend() -> SimpleNamespace:
    """The pretend parts."""
    return SimpleNamespace(
        Engine=PretendEngine,
        Source=PretendSource,
        Reference=PretendReference,
        prompts=make_prompts,
        regime=make_regime,
    )


@pytest.fixture
def bench() -> Bench:
    """Two families, a drafter that is always right and one that is always wrong."""
    return Bench(
        engine=PretendEngine(),
        sources={"good": PretendSource(good=9), "bad": PretendSource(good=0)},
        prompts={"code": make_prompts("code", 6), "arithmetic": make_prompts("arithmetic", 5)},
        config=EvaluationConfig(
            prompts_per_family=6,
            max_new_tokens=13,
            batch_size=4,
            default_depths=(2, 3),
            timing_prompts_per_family=5,
            timing_new_tokens=13,
            hf_prompts=3,
            concurrencies=(2,),
            bootstrap=BootstrapConfig(resamples=200),
        ),
        regime=make_regime(),
        reference=PretendReference(),
    )


@pytest.fixture
def report(bench: Bench) -> dict[str, Any]:
    """The report of the bench's whole evaluation."""
    sizes = {family: len(prompts) for family, prompts in bench.prompts.items()}
    units = plan_units(bench.config, sizes, dict.fromkeys(bench.sources))
    return build_report(
        units,
        [run_unit(unit, bench) for unit in units],
        regime=bench.regime,
        bootstrap=bench.config.bootstrap,
        facts=RunFacts(
            workloads=describe_workloads(bench.prompts, {"code"}),
            training={
                "good": TrainingFacts(steps=2, tokens=64, seconds=3.5, loss_curve=((1, 4.0), (2, 3.0)))
            },
            dataset=DATASET,
            truncation={"good": truncation()},
            stages={"distil": 61.0, "train": 3.5},
            peak_rss_bytes=2**30,
        ),
        generated_at=datetime(2030, 1, 2, tzinfo=UTC),
    )
