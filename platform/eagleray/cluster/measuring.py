"""What measuring processes of all sweeps share: what they run, in which regime, how fast it is plainly."""

from collections.abc import Mapping, Sequence
from typing import Any

from eagleray.cluster.crew import Crew
from eagleray.corpus.chat import ChatTemplate, RenderedPrompt, TemplateArguments, template_hash
from eagleray.engines.base import DraftSetting, Engine
from eagleray.engines.catalog import engine_version, settings_in_use
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.errors import ClusterError
from eagleray.evaluation.interleaved import GroupTimes, measure_interleaved
from eagleray.evaluation.regime import Regime, describe_machine, workload_hash
from eagleray.recipe.sections import PipelineRecipe
from eagleray.settings import Settings, differences
from eagleray.targets.config import TargetConfig
from eagleray.targets.identity import target_hash
from eagleray.targets.loading import load_tokenizer, resolve_target
from eagleray.tuning.config import ServingMeasure
from eagleray.tuning.outcome import Scale
from eagleray.tuning.study import Study

PLAIN_RATE = "plain_tokens_per_s"


class MeasuringWork(Settings):
    """What a measuring process must know of the target and the measurement."""

    target: TargetConfig
    target_hash: str
    template_hash: str
    template_arguments: TemplateArguments
    engine: NativeEngineConfig
    measure: ServingMeasure
    workers: int

    def regime(
        self, workload: str, prompts: Sequence[RenderedPrompt], drafter_hashes: Mapping[str, str]
    ) -> Regime:
        """Where the process that asks measures."""
        return Regime(
            machine=describe_machine(),
            workers=self.workers,
            engine=self.engine.name,
            engine_version=engine_version(self.engine),
            engine_settings=settings_in_use(self.engine),
            dtype=self.target.dtype,
            target_hash=self.target_hash,
            drafter_hashes=dict(drafter_hashes),
            template_hash=self.template_hash,
            workload_hash=workload_hash({workload: prompts}),
            acceptance_concurrency=self.measure.concurrency,
            timing_concurrency=self.measure.concurrency,
            max_new_tokens=self.measure.new_tokens,
            timing_new_tokens=self.measure.new_tokens,
        )

    def pick(
        self, prompts: Sequence[RenderedPrompt], groups: Sequence[int] | None
    ) -> Sequence[RenderedPrompt]:
        """The prompts of some groups of those that are decoded together; None: all."""
        size = self.measure.concurrency
        if groups is None:
            return prompts
        return [item for group in groups for item in prompts[group * size :][:size]]

    def interleaved(
        self, engine: Engine, prompts: Sequence[RenderedPrompt], drafts: Sequence[DraftSetting | None]
    ) -> tuple[GroupTimes, ...]:
        """Plain decoding and every draft setting, by turns, on each group of the prompts."""
        return measure_interleaved(
            engine,
            prompts,
            drafts,
            concurrency=self.measure.concurrency,
            max_new_tokens=self.measure.new_tokens,
        )

    def num_groups(self, prompts: Sequence[object]) -> int:
        """How many groups so many prompts make."""
        return -(-len(prompts) // self.measure.concurrency)


def target_facts(pipeline: PipelineRecipe) -> dict[str, Any]:
    """The fields of `MeasuringWork` that a pipeline recipe and its target fix.

    Raises:
        ArtifactError: The target cannot be had.
    """
    folder = resolve_target(pipeline.target)
    chat = ChatTemplate(load_tokenizer(folder), pipeline.prompts.template_arguments)
    return {
        "target": pipeline.target,
        "target_hash": target_hash(folder),
        "template_hash": template_hash(chat),
        "template_arguments": pipeline.prompts.template_arguments,
        "engine": pipeline.engine,
    }


def open_regime(crew: Crew, *arguments: str) -> Regime:
    """The regime that all processes of a crew measure in.

    Args:
        arguments: Of the actors' method `regime`.

    Raises:
        ClusterError: They do not measure in one, so that their figures would not compare.
    """
    first, *others = (regime.model_dump(mode="json") for regime in crew.everywhere("regime", *arguments))
    for other in others:
        if differing := differences(first, other):
            raise ClusterError(
                f"The processes of this sweep measure in different regimes: {'; '.join(differing)}. Let them "
                "run on machines of one kind, or lower study.workers."
            )
    return Regime.model_validate(first)


def open_scale(study: Study, crew: Crew, measure: ServingMeasure, *arguments: str) -> Scale:
    """The plain rate of a study, measured at its first start by all processes at the same time.

    Args:
        arguments: Of the actors' method `plain`.
    """
    if study.recall(PLAIN_RATE) is None:
        pairs = crew.everywhere("plain", *arguments)
        study.remember(PLAIN_RATE, sum(tokens for tokens, _ in pairs) / sum(seconds for _, seconds in pairs))
    return Scale(plain_tokens_per_s=study.recall(PLAIN_RATE), latency_bound_ms=measure.latency_bound_ms)
