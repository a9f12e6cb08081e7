"""The main job: distil, train and export each drafter, evaluate, report.

Stages keep records, so the same command continues an interrupted run and refuses to mix it with
another recipe. The report is made anew at each run: it takes a second.
"""

from collections.abc import Sequence
from typing import Any

from eagleray.cluster.context import RunContext
from eagleray.cluster.distil import DistilWork, distil
from eagleray.cluster.evaluate import evaluate_drafters, write_run_report
from eagleray.cluster.stage import Stage, StageOutcome, run_stage
from eagleray.cluster.train import train_drafter
from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import Prompt
from eagleray.distillation.plan import ENCODER_VERSION
from eagleray.recipe.sections import PipelineRecipe
from eagleray.recipe.stages import read_stage
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


def run_stages(run: RunContext, stages: Sequence[Stage]) -> None:
    """Run stages one after the other, skipping those that are complete; after the evaluation, report."""
    for stage in stages:
        run_stage(stage, run.folder.stages)
        if stage.name == EVALUATE:
            write_run_report(run, [read_stage(run.folder.stages, name.name) for name in plan_stages(run)])


def min_cpus(recipe: PipelineRecipe) -> int:
    """CPUs that the widest stage holds at once."""
    trainings = [section.training.workers for section in recipe.drafters.values()]
    return max(recipe.distil.workers * recipe.distil.cpus_per_worker, recipe.evaluation.workers, *trainings)


def content_key(run: RunContext) -> ContentKey:
    """Everything that the content of the dataset depends on."""
    return ContentKey(
        encoder_version=ENCODER_VERSION,
        prompts_hash=prompts_hash(run.train_prompts),
        target_hash=run.identity.target_hash,
        tokenizer_hash=run.identity.tokenizer_hash,
        template_hash=run.identity.template_hash,
        dtype=run.recipe.target.dtype,
        sampling="greedy",
        max_new_tokens=run.recipe.distil.max_new_tokens,
        rows_per_shard=run.recipe.distil.rows_per_shard,
    )


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Hash of prompts and their order."""
    return fingerprint([[prompt.prompt_id, prompt.category] for prompt in prompts])


def _distil_stage(run: RunContext) -> Stage:
    config = run.recipe.distil
    key = content_key(run)
    features = run.folder.features if config.capture_features else None
    captured = list(run.feature_layers) if features else []

    def work() -> StageOutcome:
        work = DistilWork(
            target=run.recipe.target,
            engine=run.recipe.engine,
            key=key,
            dataset=run.folder.dataset,
            features=features,
            feature_layers=run.feature_layers,
            max_prompt_tokens=run.geometry.max_position_embeddings - config.max_new_tokens,
        )
        manifest, peak = distil(run.train_prompts, work, config, run.listener)
        return StageOutcome(peak_rss_bytes=peak, facts=manifest.facts())

    return Stage(
        name=DISTIL,
        inputs=lambda: {"key": key.model_dump(mode="json"), "captured_layers": captured},
        work=work,
        products=(run.folder.dataset, run.folder.features),
    )


def _train_stage(run: RunContext, label: str) -> Stage:
    section = run.recipe.drafters[label]

    def inputs() -> dict[str, Any]:
        manifest, _ = read_dataset(run.folder.dataset)
        return {"dataset": manifest.content_hash(), **section.model_dump(mode="json")}

    return Stage(
        name=train_stage_name(label),
        inputs=inputs,
        work=lambda: train_drafter(run, label),
        products=(run.folder.training / label, run.folder.drafter(label)),
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
            "held_out": prompts_hash(run.held_out_prompts),
            "drafters": hashes(),
            "engine": recipe.engine.model_dump(mode="json"),
            "evaluation": recipe.evaluation.model_dump(mode="json"),
        },
        work=lambda: evaluate_drafters(run, hashes()),
        products=(run.folder.evaluation,),
        needs=tuple(train_stage_name(label) for label in recipe.drafters),
    )
