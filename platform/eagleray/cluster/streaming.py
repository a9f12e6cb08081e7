"""The feature mode `streamed`: a pool of target processes feeds the trainers, and both scale apart.

Ray Data works through the steps in order and deals micro-batches out in turn, so every rank gets its own and
a step is the one of the other modes. It replaces target processes that die and repeats what they had begun;
when a trainer dies, the next attempt opens a new stream at its newest checkpoint.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ray
import ray.train
import torch
from ray.data import ActorPoolStrategy, Dataset, ExecutionOptions
from ray.train import DataConfig

from eagleray.cluster.train_work import TrainWork
from eagleray.errors import EagleRayError
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.feature_store import FeatureStore
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.loading import resolve_target
from eagleray.targets.spread import SpreadTarget
from eagleray.training.batches import BatchPlan
from eagleray.training.checkpoint import CheckpointFolder
from eagleray.training.features import ColocatedFeatures, StoredFeatures
from eagleray.training.rows import TrainingRows, first_row
from eagleray.training.streamed import BatchCapturer, StreamedBatch, StreamedFeatures

STREAM = "features"
"""Name of the dataset that trainers take shards of."""
HELD_OUT = "held-out-features"
"""Folder beside the checkpoints with the features of samples kept out of training."""
HELD_OUT_BYTES = 2**31
"""Of these features, what stays in memory."""


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """Which steps are streamed, and to how many."""

    first_step: int
    end_step: int
    ranks: int


class TargetProcess:
    """Holds the target in a process of the pool."""

    def __init__(self, work: TrainWork, plan: StreamPlan):
        self._work = work
        self._plan = plan

    @cached_property
    def _capturer(self) -> BatchCapturer:
        """Opened with the first step, so that its errors reach a trainer as those of any step."""
        rows, plan = plan_batches(self._work)
        return BatchCapturer(rows, plan, self._work.training, *open_target(self._work))

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, bytes]]:
        try:
            for batch in self._capturer.step(row["step"], self._plan.ranks):
                yield {"batch": pickle.dumps(batch)}
        except EagleRayError as error:
            # As items: raised, it would come back wrapped, logged and with advice about Ray's retries.
            failed = pickle.dumps(StreamedBatch(names="", error=error))
            yield from ({"batch": failed} for _ in range(self._plan.ranks))


def open_target(work: TrainWork) -> tuple[ColocatedFeatures, torch.device]:
    """The target, on all GPUs that this process has, tapped where the drafter wants; and its first device."""
    folder, dtype = resolve_target(work.target), getattr(torch, work.target.dtype)
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    target: TargetDecoder | SpreadTarget
    if len(gpus) > 1:
        target = SpreadTarget.load(folder, dtype, gpus)
    else:
        target = TargetDecoder.load(folder, dtype, gpus[0] if gpus else "cpu")
    layers = work.drafter.tapped_layers(target.geometry.num_layers)
    return ColocatedFeatures(target, layers), target.device


def plan_batches(work: TrainWork) -> tuple[TrainingRows, BatchPlan]:
    """What is trained on, and in which batches."""
    rows = TrainingRows(work.split()[0], work.training)
    return rows, rows.plan()


def plan_stream(work: TrainWork) -> StreamPlan:
    """The steps that are left after the newest checkpoint."""
    training, (_, plan) = work.training, plan_batches(work)
    checkpoints = CheckpointFolder(work.run, training.keep_checkpoints)
    newest = checkpoints.newest()
    return StreamPlan(
        first_step=0 if newest is None else checkpoints.step_of(newest),
        end_step=plan.total_steps(training.epochs, training.max_steps),
        ranks=training.workers,
    )


def open_stream(work: TrainWork, plan: StreamPlan, *, gpus: bool) -> Dataset:
    """The features of all micro-batches, in the order in which they are trained on."""
    pool = work.training.stream
    steps = [{"step": step} for step in range(plan.first_step, plan.end_step)]
    dataset = ray.data.from_items(steps, override_num_blocks=len(steps)).flat_map(
        TargetProcess,
        fn_constructor_args=(work, plan),
        compute=ActorPoolStrategy(
            min_size=min(pool.min_workers, len(steps)),
            max_size=min(pool.max_workers, len(steps)),
            max_tasks_in_flight_per_actor=2,
        ),
        num_cpus=pool.cpus_per_worker,
        num_gpus=pool.gpus_per_worker if gpus else None,
    )
    # A block ends once it is larger than this: every micro-batch is one, and travels when it is ready.
    dataset.context.target_max_block_size = 1
    dataset.context.enable_progress_bars = False
    dataset.context.print_on_execution_start = False
    return dataset


def in_order() -> DataConfig:
    """How shards are made: in turn, wherever the blocks lie."""
    return DataConfig(execution_options=ExecutionOptions(preserve_order=True), enable_shard_locality=False)


def take_shard(work: TrainWork, layers: tuple[int, ...]) -> StreamedFeatures:
    """This rank's features, within a training worker."""
    kept_out = [sample.sample_id for sample in work.split()[1]]
    others = StoredFeatures(held_out_store(work, layers), layers, cache_bytes=HELD_OUT_BYTES)
    return StreamedFeatures(_batches(work.training.stream.prefetch_batches), others, kept_out)


def _batches(prefetched: int) -> Iterator[StreamedBatch]:
    # Within the iterator: a run that has ended asks for no batch, and there is no stream for it.
    shard = ray.train.get_dataset_shard(STREAM)
    for item in shard.iter_batches(batch_size=1, prefetch_batches=prefetched):
        yield pickle.loads(item["batch"][0])


def held_out_store(work: TrainWork, layers: tuple[int, ...]) -> FeatureStore:
    """Where the features of samples that are not trained on are kept, in the target's own dtype."""
    return FeatureStore(work.run / HELD_OUT, layers, getattr(torch, work.target.dtype))


def capture_held_out(work: TrainWork, *, gpus: bool) -> None:
    """Capture the features of the samples kept out of training, those that an earlier start did not.

    Raises:
        RayTaskError: The target could not be run.
    """
    pool = work.training.stream
    task = ray.remote(_capture_held_out).options(
        num_cpus=pool.cpus_per_worker, num_gpus=pool.gpus_per_worker if gpus else 0
    )
    ray.get(task.remote(work))


def _capture_held_out(work: TrainWork) -> None:
    num_layers = TargetGeometry.read(resolve_target(work.target)).num_layers
    store = held_out_store(work, work.drafter.tapped_layers(num_layers))
    missing = [s for s in work.split()[1] if not store.path(s.sample_id).exists()]
    if not missing:
        return
    source, device = open_target(work)
    for sample in missing:
        ids = sample.input_ids
        features_BTLD, final_BTD = source.features([first_row(sample, len(ids))], device)
        store.put(sample.sample_id, ids, features_BTLD[0, :-1], final_BTD[0, :-1])
