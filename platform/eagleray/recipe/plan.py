"""A recipe thought through on paper: how many tokens and steps, where things run, and what memory they take.

Everything is an upper bound that follows from settings and from the target's shape. What cannot work is an
error here, on a laptop, and not after a night in a queue.
"""

import math
from dataclasses import dataclass

from eagleray.errors import ConfigError
from eagleray.recipe.sections import DrafterSection, MachinesConfig, PipelineRecipe
from eagleray.recipe.stream_plan import StreamPlan, check_stream, plan_stream
from eagleray.targets.geometry import TargetGeometry
from eagleray.training.memory import GIB, MemoryPlan, check_memory, gib, plan_memory, target_parameters

LARGEST_SHARE = 0.1
"""Of the samples, at most this much is kept out of training."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """One drafter's training."""

    label: str
    num_parameters: int
    workers: int
    accumulation: int
    """Micro-batches of one worker and step; at most, where short sequences share rows."""
    steps: int | None
    """None: not known before the prompts are read."""
    supervised_tokens: int | None
    """At most, every pass counted."""
    memory: MemoryPlan
    stream: StreamPlan | None
    """Target processes that feed the workers; None where none do."""


@dataclass(frozen=True, kw_only=True)
class RecipePlan:
    """What a run will be."""

    target_parameters: int
    prompts: int | None
    """Training prompts; None where a source does not say how many it has."""
    answer_tokens: int | None
    """At most."""
    feature_bytes: int | None
    """Of stored features, at most; 0 where none are stored."""
    trainings: tuple[TrainingPlan, ...]


def plan_recipe(recipe: PipelineRecipe, geometry: TargetGeometry, prompts: int | None = None) -> RecipePlan:
    """Resolve a recipe against the shape of its target.

    Args:
        prompts: Training prompts, where the sources do not say how many they have.

    Raises:
        ConfigError: It cannot work; says what to change.
    """
    prompts = count_prompts(recipe) or prompts
    samples = None if prompts is None else prompts * recipe.distil.samples_per_prompt
    check_lengths(recipe, geometry)
    for label, section in recipe.drafters.items():
        check_features(recipe, section, label)
        check_layers(section, geometry, label)
    trainings = tuple(
        plan_training(recipe, label, section, geometry, samples) for label, section in recipe.drafters.items()
    )
    if recipe.machines is not None:
        check_placement(recipe, recipe.machines)
        for planned in trainings:
            training = recipe.drafters[planned.label].training
            capacity = rank_memory(recipe.machines, planned.workers)
            check_memory(planned.memory, capacity, training, f"drafters.{planned.label}.training")
            if planned.stream is not None:
                check_stream(planned.stream, training, recipe.machines, f"drafters.{planned.label}.training")
    return RecipePlan(
        target_parameters=target_parameters(geometry),
        prompts=prompts,
        answer_tokens=None if samples is None else samples * recipe.distil.max_new_tokens,
        feature_bytes=plan_features(recipe, geometry, samples),
        trainings=trainings,
    )


def count_prompts(recipe: PipelineRecipe) -> int | None:
    """Training prompts, if every source says how many it has."""
    counts = [getattr(source, "count", None) for source in recipe.prompts.train]
    return None if None in counts else sum(count for count in counts if count)


def plan_training(
    recipe: PipelineRecipe, label: str, section: DrafterSection, geometry: TargetGeometry, samples: int | None
) -> TrainingPlan:
    """Steps, tokens and memory of one drafter."""
    training = section.training
    share = training.global_batch_size // training.workers
    steps = None
    if samples is not None:
        kept_out = min(training.replay_samples, int(samples * LARGEST_SHARE))
        per_epoch = (samples - kept_out) // training.global_batch_size
        if per_epoch == 0:
            raise ConfigError(
                f"drafters.{label}.training.global_batch_size is {training.global_batch_size}, but there are "
                f"{samples - kept_out} samples to train on. Give more prompts, or lower it."
            )
        steps = min(training.epochs * per_epoch, training.max_steps or math.inf)
    steps = training.max_steps if steps is None else int(steps)
    per_step = training.global_batch_size * recipe.distil.max_new_tokens
    return TrainingPlan(
        label=label,
        num_parameters=section.drafter.num_parameters(geometry),
        workers=training.workers,
        accumulation=math.ceil(share / training.micro_batch_size),
        steps=steps,
        supervised_tokens=None if steps is None else steps * per_step,
        memory=plan_memory(section.drafter, training, geometry, BYTES[recipe.target.dtype]),
        stream=plan_stream(
            training,
            geometry,
            len(section.drafter.tapped_layers(geometry.num_layers)),
            BYTES[recipe.target.dtype],
        ),
    )


def plan_features(recipe: PipelineRecipe, geometry: TargetGeometry, samples: int | None) -> int | None:
    """Bytes of stored features, for samples as long as any training takes.

    Raises:
        ConfigError: They take more than `feature_store.budget_gib`.
    """
    if not recipe.distil.capture_features:
        return 0
    if samples is None:
        return None
    sections = recipe.drafters.values()
    layers = {layer for each in sections for layer in each.drafter.tapped_layers(geometry.num_layers)}
    longest = max(section.training.max_length for section in sections)
    per_token = (len(layers) + 1) * geometry.hidden_size * BYTES[recipe.feature_store.dtype]
    needed = samples * longest * per_token
    if needed > recipe.feature_store.budget_gib * GIB:
        raise ConfigError(
            f"Stored features take up to {gib(needed)} ({samples:,} samples of at most {longest} tokens, "
            f"{per_token:,} bytes each); feature_store.budget_gib is {recipe.feature_store.budget_gib:g}. "
            "Raise it, tap fewer layers, or set distil.capture_features to false and training.features to "
            "colocated."
        )
    return needed


def check_lengths(recipe: PipelineRecipe, geometry: TargetGeometry) -> None:
    """Check that answers fit the training length, and that the target reaches as far.

    Raises:
        ConfigError: They do not.
    """
    longest = recipe.distil.max_new_tokens
    for label, section in recipe.drafters.items():
        length = section.training.max_length
        if length > geometry.max_position_embeddings:
            raise ConfigError(
                f"drafters.{label}.training.max_length is {length}; the target reaches "
                f"{geometry.max_position_embeddings} positions. Lower it to that."
            )
        if longest >= length and section.training.long_samples == "clip":
            raise ConfigError(
                f"distil.max_new_tokens is {longest} and drafters.{label}.training.max_length {length}: an "
                "answer alone may fill it, and prompts come before. Raise max_length, lower max_new_tokens, "
                "or set long_samples to window."
            )


def check_features(recipe: PipelineRecipe, section: DrafterSection, label: str) -> None:
    """Check that features come from somewhere.

    Raises:
        ConfigError: They are to be read, but nobody stores them.
    """
    if section.training.features == "stored" and not recipe.distil.capture_features:
        raise ConfigError(
            f"drafters.{label}.training.features is stored, but distil.capture_features is false, so there "
            "will be none. Set one of them to the other's way."
        )


def check_layers(section: DrafterSection, geometry: TargetGeometry, label: str) -> None:
    """Check tapped layers against the target.

    Raises:
        ConfigError: One does not exist.
    """
    layers = section.drafter.tapped_layers(geometry.num_layers)
    if any(not 0 <= layer < geometry.num_layers for layer in layers):
        raise ConfigError(
            f"drafters.{label}.drafter.target_layer_ids is {list(layers)}; the target has layers 0 to "
            f"{geometry.num_layers - 1}."
        )


def check_placement(recipe: PipelineRecipe, machines: MachinesConfig) -> None:
    """Check that every stage finds room on the machines, and that all of them see its files.

    Raises:
        ConfigError: A stage asks for more than there is, or for paths that only one machine has.
    """
    gpus, cpus = machines.nodes * machines.gpus_per_node, machines.nodes * machines.cpus_per_node
    for label, section in recipe.drafters.items():
        workers, name = section.training.workers, f"drafters.{label}.training.workers"
        room = gpus or cpus
        if workers > room:
            raise ConfigError(
                f"{name} is {workers}; the machines have {gpus} GPUs and {cpus} cores. Lower it, or raise "
                "machines.nodes."
            )
    engines = recipe.distil.worker_range.min
    if recipe.distil.gpus_per_worker * engines > gpus or recipe.distil.cpus_per_worker * engines > cpus:
        raise ConfigError(
            f"distil needs {engines} workers of {recipe.distil.gpus_per_worker:g} GPUs and "
            f"{recipe.distil.cpus_per_worker} cores; the machines have {gpus} and {cpus}. Lower "
            "distil.workers."
        )
    if machines.nodes > 1 and not recipe.run.root.is_absolute():
        raise ConfigError(
            f"run.root is {recipe.run.root}, which is another folder on each of {machines.nodes} machines. "
            "Set it to an absolute path that all of them share."
        )


def rank_memory(machines: MachinesConfig, workers: int) -> int:
    """Bytes that one training process has to itself."""
    if machines.gpus_per_node:
        return int((machines.gpu_memory_gib or 0) * GIB)
    per_node = math.ceil(workers / machines.nodes)
    return int(machines.host_memory_gib * GIB / per_node)
