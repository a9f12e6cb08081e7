"""Runs one unit: an engine, drafters and prompts in, a record out. Knows no cluster."""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from eagleray.corpus.chat import RenderedPrompt
from eagleray.drafters.base import DraftSource
from eagleray.engines.base import (
    DraftSetting,
    Engine,
    Generation,
    GenerationRequest,
    GenerationRun,
    TokenScore,
)
from eagleray.errors import EngineError
from eagleray.evaluation.config import EvaluationConfig
from eagleray.evaluation.interleaved import measure_interleaved
from eagleray.evaluation.machine_load import measured_load
from eagleray.evaluation.near_ties import EXACT_DTYPE
from eagleray.evaluation.records import (
    Answer,
    AnswersRecord,
    LoadRecord,
    ReferenceRecord,
    Rival,
    SampledRecord,
    TimedAnswer,
    TimingRecord,
    UnitRecord,
)
from eagleray.evaluation.reference import ReferenceModel
from eagleray.evaluation.regime import Regime
from eagleray.evaluation.units import (
    AnswersUnit,
    DraftChoice,
    LoadUnit,
    ReferenceUnit,
    SampledUnit,
    TimingUnit,
    Unit,
)
from eagleray.speculation.config import SamplingConfig

Progress = Callable[[int], None]
"""Called with the number of tokens that were just delivered."""

WARM_UP_TOKENS = 2


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Everything that units are measured with. One per worker process."""

    engine: Engine
    sources: Mapping[str, DraftSource]
    """Drafters by label."""
    prompts: Mapping[str, Sequence[RenderedPrompt]]
    """Held-out prompts by family."""
    config: EvaluationConfig
    regime: Regime
    reference: ReferenceModel | None = None
    """Needed by reference units only."""


def run_unit(unit: Unit, bench: Bench, on_progress: Progress | None = None) -> UnitRecord:
    """Measure one unit.

    Raises:
        EngineError: The engine or the reference cannot do what the unit asks for.
    """
    if isinstance(unit, AnswersUnit):
        return measure_answers(unit, bench, on_progress)
    if isinstance(unit, TimingUnit):
        return measure_timing(unit, bench, on_progress)
    if isinstance(unit, LoadUnit):
        return measure_load(unit, bench)
    if isinstance(unit, SampledUnit):
        return measure_sampled(unit, bench)
    return measure_reference(unit, bench)


def measure_answers(unit: AnswersUnit, bench: Bench, on_progress: Progress | None = None) -> AnswersRecord:
    """Answer the prompts of a family in batches."""
    config = bench.config
    prompts = bench.prompts[unit.family][: config.prompts_per_family]
    requests = [_request(prompt, config.max_new_tokens) for prompt in prompts]
    setting = _setting(unit.draft, bench)
    if setting is None and bench.regime.dtype != EXACT_DTYPE:
        requests = [replace(request, log_probabilities=2) for request in requests]
    generations: list[Generation] = []
    for start in range(0, len(requests), config.batch_size):
        batch = requests[start : start + config.batch_size]
        generations += bench.engine.generate(batch, draft=setting, on_progress=on_progress).generations
    return AnswersRecord(unit=unit, regime=bench.regime, answers=tuple(_answer(g) for g in generations))


def measure_timing(unit: TimingUnit, bench: Bench, on_progress: Progress | None = None) -> TimingRecord:
    """Time every setting on one prompt.

    The order rotates with the prompt, so over the prompts no setting always runs first or last.
    """
    prompt = bench.prompts[unit.family][unit.prompt_index]
    choices: list[DraftChoice | None] = [None, *unit.drafts]
    shift = unit.prompt_index % len(choices)
    rotated = choices[shift:] + choices[:shift]
    # The first call of each setting pays for allocations that no later call pays for.
    warm_up = _request(prompt, min(WARM_UP_TOKENS, bench.config.timing_new_tokens))
    for choice in rotated:
        bench.engine.generate([warm_up], draft=_setting(choice, bench))
    request = _request(prompt, bench.config.timing_new_tokens)
    with measured_load() as window:
        timings = [
            _timed_answer(
                choice,
                bench.engine.generate([request], draft=_setting(choice, bench), on_progress=on_progress),
            )
            for choice in rotated
        ]
    return TimingRecord(unit=unit, regime=bench.regime, timings=tuple(timings), machine_load=window.load)


def measure_load(unit: LoadUnit, bench: Bench) -> LoadRecord:
    """Time every setting on one group of prompts, of all families in turns."""
    ranked = [item for rank in zip_longest(*bench.prompts.values()) for item in rank if item is not None]
    start = unit.group * unit.concurrency
    (times,) = measure_interleaved(
        bench.engine,
        ranked[start : start + unit.concurrency],
        [_setting(draft, bench) for draft in unit.drafts],
        concurrency=unit.concurrency,
        max_new_tokens=bench.config.timing_new_tokens,
        first_group=unit.group,
    )
    return LoadRecord(unit=unit, regime=bench.regime, times=times)


def measure_sampled(unit: SampledUnit, bench: Bench) -> SampledRecord:
    """Draw answers at temperature 1. No two settings share a seed: the same seed gives the same answer with
    any drafter, and answers that are equal by construction would tell nothing."""
    config, prompt = bench.config, bench.prompts[unit.family][0]
    setting = _setting(unit.draft, bench)
    first_seed = zlib.crc32(unit.name.encode()) << 20
    answers: list[tuple[int, ...]] = []
    for start in range(0, config.sampled_answers, config.batch_size):
        seeds = range(start, min(start + config.batch_size, config.sampled_answers))
        requests = [
            replace(
                _request(prompt, config.sampled_tokens),
                request_id=f"sample-{seed}",
                sampling=SamplingConfig(temperature=1.0),
                seed=first_seed + seed,
            )
            for seed in seeds
        ]
        answers += [one.answer_ids for one in bench.engine.generate(requests, draft=setting).generations]
    return SampledRecord(unit=unit, regime=bench.regime, answers=tuple(answers))


def measure_reference(unit: ReferenceUnit, bench: Bench) -> ReferenceRecord:
    """Time the engine and the reference on one prompt, in an order that alternates with the prompt."""
    reference = bench.reference
    if reference is None:
        raise EngineError(
            f"Unit {unit.name} compares with Hugging Face `generate`, but this worker has no reference. "
            "Give Bench.reference, or set evaluation.hf_prompts to 0."
        )
    prompt = bench.prompts[unit.family][unit.prompt_index]

    def run_engine(max_new_tokens: int) -> tuple[int, ...]:
        return bench.engine.generate([_request(prompt, max_new_tokens)]).generations[0].answer_ids

    def run_reference(max_new_tokens: int) -> tuple[int, ...]:
        return reference.generate(prompt.prompt_ids, max_new_tokens)

    runs = {"engine": run_engine, "reference": run_reference}
    seconds: dict[str, float] = {}
    ids: dict[str, tuple[int, ...]] = {}
    with measured_load() as window:
        for name in sorted(runs, reverse=unit.prompt_index % 2 == 1):
            runs[name](min(WARM_UP_TOKENS, bench.config.timing_new_tokens))
            start_s = time.perf_counter()
            ids[name] = runs[name](bench.config.timing_new_tokens)
            seconds[name] = time.perf_counter() - start_s
    return ReferenceRecord(
        unit=unit,
        regime=bench.regime,
        engine_s=seconds["engine"],
        engine_ids=ids["engine"],
        reference_s=seconds["reference"],
        reference_ids=ids["reference"],
        machine_load=window.load,
    )


def _request(prompt: RenderedPrompt, max_new_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=prompt.prompt.prompt_id, prompt_ids=prompt.prompt_ids, max_new_tokens=max_new_tokens
    )


def _setting(choice: DraftChoice | None, bench: Bench) -> DraftSetting | None:
    if choice is None:
        return None
    return DraftSetting(source=bench.sources[choice.label], depth=choice.depth)


def _answer(generation: Generation) -> Answer:
    return Answer(
        prompt_id=generation.request_id,
        prompt_tokens=len(generation.prompt_ids),
        answer_ids=generation.answer_ids,
        finish_reason=generation.finish_reason,
        cycles=generation.cycles,
        rivals=tuple(_rival(score) for score in generation.scores or ()),
    )


def _rival(score: TokenScore) -> Rival:
    (_, most), (token, next_most) = score.likeliest
    return Rival(token=token, margin=most - next_most)


def _timed_answer(choice: DraftChoice | None, run: GenerationRun) -> TimedAnswer:
    generation = run.generations[0]
    return TimedAnswer(
        draft=choice,
        answer_ids=generation.answer_ids,
        cycles=len(generation.cycles),
        tokens=sum(cycle.delivered for cycle in generation.cycles),
        draft_s=run.times.draft_s,
        verify_s=run.times.verify_s,
        host_s=run.times.host_s,
    )
