"""The main job: distil, train and export each drafter, evaluate, report.

Stages keep records, so the same command continues an interrupted run and refuses to mix it with
another recipe. The report is made anew at each run: it takes a second.
"""

from collections.abc import Sequence
from typing import Any

from eagleray.cluster.context import RunContext
from eagleray.cluster.distil import DistilWork, distil
from eagleray.cluster.evaluate import evaluate_drafters, write_run_report
from eagleray.cluster.repair import RepairReport, repair_dataset
from eagleray.cluster.stage import Stage, StageOutcome, run_stage
from eagleray.cluster.train import train_drafter
from eagleray.corpus.dataset import read_complete_manifest
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt_table import prompts_hash
from eagleray.corpus.storage import LocalFolder
from eagleray.corpus.summary import summarise_dataset
from eagleray.distillation.plan import ENCODER_VERSION
from eagleray.evaluation.golden import GoldenFile
from eagleray.monitoring.memory import peak_rss_bytes
from eagleray.recipe.sections import PipelineRecipe
from eagleray.recipe.stages import begin_stage, read_stage, reopen_stage
from eagleray.settings import fingerprint

DISTIL = "distil"
EVALUATE = "evaluate"


def train_stage_name(label: str) -> str:
    """Name of the stage that trains the drafter with this label."""
    return f"train_{label}"


def plan_stages(run: RunContext) -> list[Stage]:
    """All stages of a run, in order."""
    trainings = [_train_stage(run, label) for label in run.recipe.drafters]
    return [_distil_stage(run), *trainings, _evaluate_stage(run)]


def run_stages(run: RunContext, stages: Sequence[Stage], golden: Sequence[GoldenFile] = ()) -> None:
    """Run stages one after the other, skipping those that are complete; after the evaluation, report.

    Raises:
        DataError: The target's answers are not those of a golden file. The report is written first.
    """
    for stage in stages:
        run_stage(stage, run.folder.stages)
        if stage.name == EVALUATE:
            records = [read_stage(run.folder.stages, each.name) for each in plan_stages(run)]
            write_run_report(run, records, golden)


def min_cpus(recipe: PipelineRecipe) -> int:
    """CPUs that the widest stage holds at once."""
    trainings = [section.training.cpus for section in recipe.drafters.values()]
    return max(
        recipe.distil.worker_range.min * recipe.distil.cpus_per_worker, recipe.evaluation.workers, *trainings
    )


def content_key(run: RunContext) -> ContentKey:
    """Everything that the content of the dataset depends on."""
    return ContentKey(
        encoder_version=ENCODER_VERSION,
        prompts_hash=run.train_prompts.content_hash,
        target_hash=run.identity.target_hash,
        tokenizer_hash=run.identity.tokenizer_hash,
        template_hash=run.identity.template_hash,
        template_arguments=run.recipe.prompts.template_arguments,
        answers=run.recipe.distil.answers,
        supervised_turns=run.recipe.distil.supervision.turns,
        supervised_thinking=run.recipe.distil.supervision.thinking,
        engine=run.recipe.distil_engine.name if run.recipe.distil.answers == "regenerate" else "none",
        dtype=run.recipe.target.dtype,
        sampling=run.recipe.distil.sampling,
        samples_per_prompt=run.recipe.distil.samples_per_prompt,
        max_new_tokens=run.recipe.distil.max_new_tokens,
        by_category=run.recipe.distil.answering_by_category(),
        rows_per_shard=run.recipe.distil.rows_per_shard,
        window_prompts=run.recipe.distil.window_prompts,
    )


def distil_work(run: RunContext) -> DistilWork:
    """What the engine workers of a run must know."""
    engine, window = run.recipe.distil_engine, run.geometry.max_position_embeddings
    return DistilWork(
        target=run.recipe.target,
        engine=engine,
        key=content_key(run),
        prompts=run.train_prompts,
        dataset=run.dataset.address,
        features=run.folder.features if run.recipe.distil.capture_features else None,
        feature_layers=run.feature_layers,
        feature_store=run.recipe.feature_store,
        context_window_tokens=min(window, engine.max_length) if engine.name == "vllm" else window,
    )


def repair_run(run: RunContext) -> RepairReport:
    """Move what is damaged in the dataset and features of a run aside; the distil stage makes it again.

    Raises:
        DataError: They were made for another recipe or by another version; nothing is touched then.
    """
    begin_stage(run.folder.stages, DISTIL, _distil_stage(run).inputs())
    # First, so that a kill halfway leaves a stage that the next start completes.
    reopen_stage(run.folder.stages, DISTIL)
    work = distil_work(run)
    return repair_dataset(run.dataset, work.key, work.open_store())


def _distil_stage(run: RunContext) -> Stage:
    captures = run.recipe.distil.capture_features

    def work() -> StageOutcome:
        made = distil(distil_work(run), run.recipe.distil, run.listener)
        summary = summarise_dataset(run.dataset, made.manifest)
        return StageOutcome(
            peak_rss_bytes=max(made.worker_peak_rss_bytes, peak_rss_bytes()),
            facts={
                "dataset": summary.model_dump(mode="json"),
                "worker_peak_rss_bytes": made.worker_peak_rss_bytes,
                "driver_peak_rss_bytes": peak_rss_bytes(),
            },
        )

    return Stage(
        name=DISTIL,
        inputs=lambda: {
            "key": content_key(run).model_dump(mode="json"),
            "captured_layers": list(run.feature_layers) if captures else [],
            "feature_dtype": run.recipe.feature_store.dtype if captures else None,
        },
        work=work,
        products=(run.dataset, LocalFolder(run.folder.features)),
    )


def _train_stage(run: RunContext, label: str) -> Stage:
    section = run.recipe.drafters[label]

    def inputs() -> dict[str, Any]:
        manifest = read_complete_manifest(run.dataset)
        return {
            "dataset": manifest.content_hash(),
            "start": section.training.start.model_dump(mode="json"),
            **section.what_is_learned(),
        }

    return Stage(
        name=train_stage_name(label),
        inputs=inputs,
        work=lambda: train_drafter(run, label),
        products=(LocalFolder(run.folder.training / label), LocalFolder(run.folder.drafter(label))),
        needs=(DISTIL,),
    )


def _evaluate_stage(run: RunContext) -> Stage:
    recipe = run.recipe

    def hashes() -> dict[str, str]:
        trained = {
            label: read_stage(run.folder.stages, train_stage_name(label)).facts["drafter_hash"]
            for label in recipe.drafters
        }
        return trained | {label: fingerprint(config) for label, config in recipe.baselines.items()}

    return Stage(
        name=EVALUATE,
        inputs=lambda: {
            "target": run.identity.target_hash,
            "template": run.identity.template_hash,
            "held_out": prompts_hash(run.held_out_prompts, "regenerate"),
            "drafters": hashes(),
            "engine": recipe.engine.model_dump(mode="json"),
            "evaluation": recipe.evaluation.model_dump(mode="json"),
        },
        work=lambda: evaluate_drafters(run, hashes()),
        products=(LocalFolder(run.folder.evaluation),),
        needs=tuple(train_stage_name(label) for label in recipe.drafters),
    )
