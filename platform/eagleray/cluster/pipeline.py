"""The main job, stage by stage: prompts, distil, train and export each drafter, evaluate, report.

Every stage is idempotent and keeps a record of the inputs it was done for, so the same command
continues an interrupted run and refuses to mix it with another recipe.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eagleray.cluster.context import RunContext
from eagleray.cluster.distil import DistilWork, distil
from eagleray.cluster.evaluate import evaluate
from eagleray.cluster.train import train_drafter
from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.manifest import ContentKey, Manifest
from eagleray.distillation.plan import ENCODER_VERSION
from eagleray.errors import ConfigError
from eagleray.recipe.stages import StageRecord, begin_stage, forget_stage, save_stage
from eagleray.settings import fingerprint

DISTIL = "distil"
EVALUATE = "evaluate"


def train_stage(label: str) -> str:
    """Name of the stage that trains the drafter with this label."""
    return f"train_{label}"


def stage_names(run: RunContext) -> list[str]:
    """All stages of a run, in order."""
    return [DISTIL, *(train_stage(label) for label in run.recipe.drafters), EVALUATE]


def discard_stages(run: RunContext, stages: Sequence[str]) -> None:
    """Forget stages and delete what they made, and what later stages made of it.

    Raises:
        ConfigError: There is no stage of that name.
    """
    known = stage_names(run)
    for stage in stages:
        if stage not in known:
            raise ConfigError(f"--redo {stage}: this recipe has the stages {', '.join(known)}.")
    if DISTIL in stages:
        stages = known
    for stage in {*stages, EVALUATE} if stages else ():
        forget_stage(run.folder.stages, stage)
        for path in _made_by(run, stage):
            shutil.rmtree(path, ignore_errors=True)


def run_distil(run: RunContext) -> StageRecord:
    """Distil the training prompts, or what is missing of them."""
    key = content_key(run)
    inputs = {"key": key.model_dump(mode="json"), "feature_layers": _captured_layers(run)}

    def work() -> dict[str, Any]:
        manifest, peak = distil(
            list(run.train_prompts),
            DistilWork(
                target=run.recipe.target,
                engine=run.recipe.engine,
                key=key,
                dataset=run.folder.dataset,
                features=run.folder.features if run.recipe.distil.capture_features else None,
                feature_layers=run.feature_layers,
                max_prompt_tokens=run.geometry.max_position_embeddings - run.recipe.distil.max_new_tokens,
            ),
            run.recipe.distil,
            run.listener,
        )
        return {"peak_rss_bytes": peak, **dataset_facts(manifest)}

    return run_stage(run, DISTIL, inputs, work)


def run_train(run: RunContext, label: str) -> StageRecord:
    """Preflight, train and export one drafter."""
    section = run.recipe.drafters[label]
    manifest, _ = read_dataset(run.folder.dataset)
    inputs = {"dataset": dataset_hash(manifest), **section.model_dump(mode="json")}
    return run_stage(run, train_stage(label), inputs, lambda: train_drafter(run, label))


def run_evaluate(run: RunContext) -> StageRecord:
    """Measure every drafter on the held-out prompts and write the report."""
    inputs = {
        "target": run.identity.target_hash,
        "held_out": prompts_hash(run.held_out_prompts),
        "drafters": {
            label: begin_record(run, train_stage(label)).facts["drafter_hash"] for label in run.recipe.drafters
        },
        "baselines": {label: config.model_dump(mode="json") for label, config in run.recipe.baselines.items()},
        "evaluation": run.recipe.evaluation.model_dump(mode="json"),
        "engine": run.recipe.engine.model_dump(mode="json"),
    }
    return run_stage(run, EVALUATE, inputs, lambda: evaluate(run))
