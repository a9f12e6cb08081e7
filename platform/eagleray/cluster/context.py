"""A run, opened: recipe checked, target at hand, everything that can fail on paper failed already."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from eagleray.corpus.chat import ChatTemplate, render_prompts, template_hash, tokenizer_hash
from eagleray.corpus.prompt import Prompt
from eagleray.corpus.prompt_files import RejectTable
from eagleray.corpus.prompt_table import PromptTable, write_table
from eagleray.corpus.prompts import ReadingListener, build_prompts
from eagleray.corpus.storage import Storage, open_storage
from eagleray.distillation.config import DistilConfig
from eagleray.distillation.planned import PlannedExtents, plan_extents
from eagleray.errors import DataError
from eagleray.files import write_json_atomically
from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.recipe.run_folder import RunFolder
from eagleray.recipe.sections import PipelineRecipe
from eagleray.targets.feature_store import bytes_per_token, feature_dtype
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.identity import target_hash
from eagleray.targets.loading import load_tokenizer, resolve_target
from eagleray.training.preflight import check_feature_budget, check_feature_layers, check_planned

MEGABYTE = 10**6
LONG_READING_BYTES = 16 * MEGABYTE
"""Prompt files of this size take long enough to read for showing how far it is."""


@dataclass(frozen=True, kw_only=True)
class TargetIdentity:
    """Hashes that go into every cache key and regime."""

    target_hash: str
    tokenizer_hash: str
    template_hash: str


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What every stage works with."""

    recipe: PipelineRecipe
    folder: RunFolder
    target_folder: Path
    geometry: TargetGeometry
    identity: TargetIdentity
    train_prompts: PromptTable
    held_out_prompts: tuple[Prompt, ...]
    """Those that the chat template can show."""
    feature_layers: tuple[int, ...]
    """Union of the layers that the drafters tap: what is captured once for all of them."""
    notes: tuple[str, ...]
    """What a person should know of the checks."""
    listener: ProgressListener

    @property
    def dataset(self) -> Storage:
        """Where the dataset lies: in the run's folder, or at an address of its own."""
        return open_storage(self.recipe.distil.dataset or self.folder.dataset)


def open_run(recipe: PipelineRecipe, listener: ProgressListener) -> RunContext:
    """Prepare a run without any cluster: target, prompts, and the checks that need neither shards nor GPU.

    Raises:
        ConfigError: A setting does not fit the target (feature layers, vocabulary).
        DataError: Prompts are missing, overlap between train and held-out, or would be cut too much;
            stored features would take too much space.
        ArtifactError: The target cannot be had.
    """
    target_folder = resolve_target(recipe.target)
    geometry = TargetGeometry.read(target_folder)
    layers: set[int] = set()
    for label, section in recipe.drafters.items():
        tapped = section.drafter.tapped_layers(geometry.num_layers)
        check_feature_layers(tapped, geometry, f"drafters.{label}.drafter.target_layer_ids")
        layers.update(tapped)
    chat = ChatTemplate(load_tokenizer(target_folder), recipe.prompts.template_arguments)
    folder = RunFolder(run_root(recipe.run.root) / recipe.run.name)
    prompts = build_prompts(
        recipe.prompts,
        recipe.distil.answers,
        folder.train_prompts,
        folder.rejected_prompts,
        reading_listener(listener),
    )
    check_categories(recipe.distil, prompts.train)
    planned = plan_extents(prompts.train, chat, recipe.distil, geometry.max_position_embeddings)
    for label, section in recipe.drafters.items():
        check_planned(planned.rows, section.training, f"drafters.{label}.training", planned.note)
    if recipe.distil.capture_features:
        _check_feature_budget(recipe, planned, len(layers), geometry, folder)
    held_out, not_shown = render_prompts(chat, prompts.held_out)
    write_json_atomically(folder.recipe, recipe.model_dump(mode="json"))
    write_table(folder.held_out_prompts, prompts.held_out)
    with RejectTable(folder.not_shown_prompts) as rejects:
        for reject in not_shown:
            rejects.add(reject)
    counts = {
        "train": prompts.train.rows,
        "held_out": len(held_out),
        "rejects": prompts.train.rejects + len(not_shown),
        "duplicates": prompts.train.duplicates,
    }
    write_json_atomically(folder.prompt_counts, counts)
    return RunContext(
        recipe=recipe,
        folder=folder,
        target_folder=target_folder,
        geometry=geometry,
        identity=TargetIdentity(
            target_hash=target_hash(target_folder),
            tokenizer_hash=tokenizer_hash(target_folder),
            template_hash=template_hash(chat),
        ),
        train_prompts=prompts.train,
        held_out_prompts=tuple(row.prompt for row in held_out),
        feature_layers=tuple(sorted(layers)),
        notes=(f"{planned.note}preflight accounted for these",) if planned.note else (),
        listener=listener,
    )


def reading_listener(listener: ProgressListener) -> ReadingListener:
    """Shows the reading of prompt files as a stage of its own."""
    meter: ProgressMeter | None = None

    def tell(done_bytes: int, total_bytes: int) -> None:
        nonlocal meter
        if total_bytes < LONG_READING_BYTES:
            return
        if meter is None:
            meter = ProgressMeter("prompts", total_bytes / MEGABYTE, "MB", listener)
        if done_bytes / MEGABYTE > meter.done:
            meter.reach(done_bytes / MEGABYTE)

    return tell


def check_categories(config: DistilConfig, prompts: PromptTable) -> None:
    """Check that settings of a category are of one that there is.

    Raises:
        DataError: A category has no prompt; lists those that have.
    """
    if unknown := sorted(set(config.by_category) - set(prompts.categories)):
        raise DataError(
            f"distil.by_category names {', '.join(unknown)}; the training prompts have the categories "
            f"{', '.join(sorted(prompts.categories))}. Correct the name, or the category of a prompts source."
        )


def run_root(configured: Path) -> Path:
    """Absolute parent of all runs.

    A submitted job works in a copy of the working directory that Ray deletes later, so there a
    relative root would lose the run: it is taken from the home folder instead.
    """
    submitted = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    base = Path.home() / "eagleray" if submitted else Path.cwd()
    return (base / configured.expanduser()).resolve()


def _check_feature_budget(
    recipe: PipelineRecipe, planned: PlannedExtents, num_layers: int, geometry: TargetGeometry, run: RunFolder
) -> None:
    token_bytes = bytes_per_token(num_layers, geometry.hidden_size, feature_dtype(recipe.feature_store))
    # What an earlier start stored has been taken from the free space already.
    stored_bytes = sum(path.stat().st_size for path in run.features.rglob("*.safetensors"))
    existing = next(path for path in (run.path, *run.path.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free + stored_bytes
    check_feature_budget(planned.tokens, token_bytes, recipe.feature_store, free_bytes, planned.note)
