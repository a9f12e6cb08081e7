"""Evaluation on Ray: units of measurement handed to a few actors, one JSON file per finished unit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util import ActorPool

from eagleray.cluster.context import RunContext
from eagleray.cluster.own_gpus import hide_other_gpus
from eagleray.cluster.stage import StageOutcome
from eagleray.corpus.chat import ChatTemplate, TemplateArguments, render_prompts
from eagleray.corpus.prompt import Prompt
from eagleray.drafters.base import DraftSource
from eagleray.drafters.catalog import build_drafter
from eagleray.drafters.folder import extend_profile, load_drafter
from eagleray.engines.catalog import build_engine, engine_version, settings_in_use
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.errors import ClusterError
from eagleray.evaluation.aggregate import RunFacts, TrainingFacts, build_report
from eagleray.evaluation.config import EvaluationConfig
from eagleray.evaluation.exactness import require_passed
from eagleray.evaluation.golden import GoldenFile
from eagleray.evaluation.measure import Bench, run_unit
from eagleray.evaluation.profile import measured_facts
from eagleray.evaluation.records import RECORD, UnitRecord, plain_answers
from eagleray.evaluation.reference import TransformersReference
from eagleray.evaluation.regime import Regime, describe_machine, workload_hash
from eagleray.evaluation.report import write_report
from eagleray.evaluation.units import Unit, plan_units
from eagleray.evaluation.workloads import describe_workloads, group_by_family
from eagleray.files import write_json_atomically
from eagleray.monitoring.memory import peak_rss_bytes
from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.recipe.sections import UntrainedDrafterConfig
from eagleray.recipe.stages import StageRecord
from eagleray.settings import Settings
from eagleray.targets.config import TargetConfig
from eagleray.targets.heads import FrozenHeads
from eagleray.targets.loading import load_tokenizer, resolve_target

MAX_RESTARTS = 3
"""Deaths of one measuring process before the evaluation gives up; its unit is measured again each time."""


class EvaluationWork(Settings):
    """What a measuring process must know."""

    target: TargetConfig
    target_hash: str
    template_hash: str
    template_arguments: TemplateArguments
    engine: NativeEngineConfig
    drafters: dict[str, Path]
    drafter_hashes: dict[str, str]
    baselines: dict[str, UntrainedDrafterConfig]
    evaluation: EvaluationConfig


class EvaluationActor:
    """Gives one `Bench` a process."""

    def __init__(self, work: EvaluationWork, prompts: Sequence[Prompt]):
        hide_other_gpus()
        folder = resolve_target(work.target)
        engine = build_engine(work.engine, folder, work.target.dtype)
        sources = load_sources(work.drafters, work.baselines, engine.decoder.heads)
        chat = ChatTemplate(load_tokenizer(folder), work.template_arguments)
        by_family = group_by_family(render_prompts(chat, prompts)[0])
        evaluation = work.evaluation
        self.bench = Bench(
            engine=engine,
            sources=sources,
            prompts=by_family,
            config=evaluation,
            regime=Regime(
                machine=describe_machine(),
                workers=evaluation.workers,
                engine=work.engine.name,
                engine_version=engine_version(work.engine),
                engine_settings=settings_in_use(work.engine),
                dtype=work.target.dtype,
                target_hash=work.target_hash,
                drafter_hashes=work.drafter_hashes,
                template_hash=work.template_hash,
                workload_hash=workload_hash(by_family),
                acceptance_concurrency=evaluation.batch_size,
                max_new_tokens=evaluation.max_new_tokens,
                timing_new_tokens=evaluation.timing_new_tokens,
            ),
            reference=TransformersReference(folder, work.target.dtype) if evaluation.hf_prompts else None,
        )

    def measure(self, unit: Unit) -> tuple[str, int]:
        """Measure one unit; returns its record as JSON and this process's peak memory in bytes."""
        return run_unit(unit, self.bench).model_dump_json(), peak_rss_bytes()


def load_sources(
    drafters: Mapping[str, Path], baselines: Mapping[str, UntrainedDrafterConfig], heads: FrozenHeads
) -> dict[str, DraftSource]:
    """Trained drafters from their folders, and training-free ones from their settings."""
    trained = {label: load_drafter(path, heads) for label, path in drafters.items()}
    return {**trained, **{label: build_drafter(config, heads) for label, config in baselines.items()}}


def measure_all(
    units: Sequence[Unit],
    work: EvaluationWork,
    prompts: Sequence[Prompt],
    folder: Path,
    listener: ProgressListener,
) -> int:
    """Measure every unit that has no record yet; returns the largest resident set of a process.

    Raises:
        ClusterError: Measuring processes keep dying.
    """
    missing = [unit for unit in units if not _record_path(folder, unit).exists()]
    meter = ProgressMeter("evaluate", len(units), "measurements", listener, len(units) - len(missing))
    peak = 0
    if missing:
        options = {
            "num_cpus": 1,
            "num_gpus": work.evaluation.gpus_per_worker,
            "max_restarts": MAX_RESTARTS,
            "max_task_retries": -1,
        }
        actors = [
            ray.remote(EvaluationActor).options(**options).remote(work, prompts)
            for _ in range(min(work.evaluation.workers, len(missing)))
        ]
        try:
            for text, unit_peak in ActorPool(actors).map_unordered(_measure, missing):
                record = RECORD.validate_json(text)
                write_json_atomically(_record_path(folder, record.unit), record.model_dump(mode="json"))
                peak = max(peak, unit_peak)
                meter.advance(1, record.unit.name)
        except RayActorError as error:
            raise ClusterError(
                f"A measuring process died and was not brought back: {error}. What was measured is kept "
                f"in {folder}; check memory (evaluation.batch_size, evaluation.workers), then start the "
                "same command again."
            ) from error
    return peak


def read_record(folder: Path, unit: Unit) -> UnitRecord:
    """Read what a finished unit measured."""
    return RECORD.validate_json(_record_path(folder, unit).read_bytes())


def _measure(actor: Any, unit: Unit) -> Any:
    return actor.measure.remote(unit)


def _record_path(folder: Path, unit: Unit) -> Path:
    return folder / f"{unit.name}.json"


def evaluate_drafters(run: RunContext, drafter_hashes: dict[str, str]) -> StageOutcome:
    """Measure every drafter of a run on its held-out prompts, or what is missing of it."""
    recipe = run.recipe
    work = EvaluationWork(
        target=recipe.target,
        target_hash=run.identity.target_hash,
        template_hash=run.identity.template_hash,
        template_arguments=recipe.prompts.template_arguments,
        engine=recipe.engine,
        drafters={label: run.folder.drafter(label) for label in recipe.drafters},
        drafter_hashes=drafter_hashes,
        baselines=recipe.baselines,
        evaluation=recipe.evaluation,
    )
    peak = measure_all(planned_units(run), work, run.held_out_prompts, run.folder.evaluation, run.listener)
    return StageOutcome(peak_rss_bytes=peak)


def planned_units(run: RunContext) -> tuple[Unit, ...]:
    """Everything that an evaluation of this run measures."""
    sizes: dict[str, int] = {}
    for prompt in run.held_out_prompts:
        sizes[prompt.category] = sizes.get(prompt.category, 0) + 1
    sections = {label: section.drafter for label, section in run.recipe.drafters.items()}
    depths = {label: config.max_depth for label, config in {**sections, **run.recipe.baselines}.items()}
    return plan_units(run.recipe.evaluation, sizes, depths)


def write_run_report(
    run: RunContext, stages: Sequence[StageRecord], golden: Sequence[GoldenFile] = ()
) -> None:
    """Put the measurements of a run and the facts of its stages into its report.

    Raises:
        DataError: The target's answers are not those of a golden file. The report is written first.
    """
    units = planned_units(run)
    records = [read_record(run.folder.evaluation, unit) for unit in units]
    chat = ChatTemplate(load_tokenizer(run.target_folder), run.recipe.prompts.template_arguments)
    rendered, _ = render_prompts(chat, run.held_out_prompts)
    facts = RunFacts(
        workloads=describe_workloads(group_by_family(rendered), set(run.train_prompts.categories)),
        training={
            stage.facts["label"]: TrainingFacts.model_validate(stage.facts["training"])
            for stage in stages
            if "training" in stage.facts
        },
        dataset=next((stage.facts["dataset"] for stage in stages if "dataset" in stage.facts), None),
        truncation={
            stage.facts["label"]: stage.facts["truncation"] for stage in stages if "truncation" in stage.facts
        },
        stages={stage.stage: stage.wall_s for stage in stages},
        peak_rss_bytes=max([peak_rss_bytes(), *(stage.peak_rss_bytes for stage in stages)]),
    )
    regime = records[0].regime
    checks = [
        check
        for file in golden
        for check in file.apply(regime.model_dump(mode="json"), plain_answers(records))
    ]
    bootstrap = run.recipe.evaluation.bootstrap
    report = build_report(units, records, regime=regime, bootstrap=bootstrap, facts=facts, checks=checks)
    write_report(run.folder.path, report)
    for label in run.recipe.drafters:
        extend_profile(run.folder.drafter(label), {"measured": measured_facts(report, label)})
    require_passed(checks)
