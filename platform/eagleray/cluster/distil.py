"""The distil pipeline on Ray Data: groups of shards in, published shards and receipts out.

Each row that flows through is a group of shard numbers. A worker reads the prompts of its group itself and
publishes each shard with one entry in the journal, which the driver folds into the manifest now and then.
So nothing large travels, nothing grows with the number of prompts, and a kill at any instant leaves a
readable dataset; the next start makes the shards that are missing.
"""

import contextlib
import logging
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
import torch
from ray.data import ActorPoolStrategy, DataContext
from ray.data.context import AutoscalingConfig
from ray.exceptions import RayError

from eagleray.cluster.own_gpus import hide_other_gpus
from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.journal import JournalEntry
from eagleray.corpus.manifest import ContentKey, Manifest, fold_journal, open_manifest, sweep_dataset
from eagleray.corpus.prompt_table import PromptTable
from eagleray.corpus.storage import open_storage
from eagleray.distillation.answers import GivenAnswers
from eagleray.distillation.config import DistilConfig
from eagleray.distillation.emitted_ids import require_emitted_ids
from eagleray.distillation.plan import ShardPlan, group_shards
from eagleray.distillation.shard_distiller import ShardDistiller
from eagleray.distillation.target_answers import TargetAnswers
from eagleray.engines.catalog import build_distilling_engine, engine_version
from eagleray.engines.config import DistilEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.errors import ClusterError, EagleRayError
from eagleray.monitoring.memory import peak_rss_bytes
from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.settings import Settings
from eagleray.targets.config import FeatureStoreConfig, TargetConfig
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.feature_store import FeatureStore, feature_dtype
from eagleray.targets.loading import load_tokenizer, resolve_target
from eagleray.training.feature_audit import FeatureAudit

MIN_FOLD = 256
"""Journal entries that are folded into the manifest at once, at least, while a job runs."""


class DistilWork(Settings):
    """What a worker must know to make shards."""

    target: TargetConfig
    engine: DistilEngineConfig
    key: ContentKey
    prompts: PromptTable
    dataset: str
    """Address of the dataset."""
    features: Path | None
    feature_layers: tuple[int, ...]
    feature_store: FeatureStoreConfig
    context_window_tokens: int
    """Longest prompt and answer together."""

    @property
    def plan(self) -> ShardPlan:
        """The partition into shards."""
        return ShardPlan(
            rows=self.prompts.rows,
            rows_per_shard=self.key.rows_per_shard,
            window_rows=self.key.window_prompts,
        )

    def open_store(self) -> FeatureStore | None:
        """Where features go; None when none are captured."""
        if self.features is None:
            return None
        return FeatureStore(self.features, self.feature_layers, feature_dtype(self.feature_store))

    def begin_manifest(self) -> Manifest:
        """The manifest of a dataset of which nothing is made yet."""
        return Manifest(
            key=self.key,
            regime={
                "target": self.target.model_dump(mode="json"),
                "engine": self.engine.model_dump(mode="json"),
                "engine_version": engine_version(self.engine),
            },
            planned_shards=self.plan.num_shards,
            planned_rows=self.prompts.rows,
        )


@dataclass(frozen=True, kw_only=True)
class DistilOutcome:
    """A finished dataset, and what making it took."""

    manifest: Manifest
    worker_peak_rss_bytes: int
    """Largest resident set of a worker; 0 if there was nothing to do."""
    driver_peak_rss_bytes: int


def open_distiller(work: DistilWork) -> ShardDistiller:
    """Load what makes shards: an engine only where answers are not given."""
    folder, storage = resolve_target(work.target), open_storage(work.dataset)
    chat = ChatTemplate(load_tokenizer(folder), work.key.template_arguments)
    if work.key.answers == "keep":
        given = GivenAnswers(chat, work.key.supervision, work.context_window_tokens)
        return ShardDistiller(given, work.key, storage)
    store = work.open_store()
    layers = store.layers if store else None
    engine = build_distilling_engine(work.engine, folder, work.target.dtype, layers)
    answers = TargetAnswers(
        engine,
        chat,
        work.key,
        work.context_window_tokens,
        work.engine.concurrency,
        layers,
    )
    if store is None:
        return ShardDistiller(answers, work.key, storage)
    share = work.feature_store.audit_share
    if isinstance(engine, NativeEngine):
        audit = FeatureAudit(store, engine.decoder, share)
    elif share:
        # Of another engine's target, which knows other names and numbers of layers: held to our own.
        decoder = TargetDecoder.load(folder, getattr(torch, work.target.dtype))
        audit = FeatureAudit(store, decoder, share)
    else:
        return ShardDistiller(answers, work.key, storage, store)
    return ShardDistiller(answers, work.key, storage, store, audit.check)


class DistilActor:
    """Gives one `ShardDistiller` a process of the actor pool."""

    def __init__(self, work: DistilWork):
        hide_other_gpus()
        self.work = work

    @cached_property
    def distiller(self) -> ShardDistiller:
        """Opened with the first group, so that its errors reach the driver as those of any group."""
        return open_distiller(self.work)

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            for entry in self.distiller.publish_missing(self.work.prompts, self.work.plan, row["shards"]):
                yield {"receipt": entry.model_dump_json(), "peak_rss_bytes": peak_rss_bytes(), "error": b""}
        except EagleRayError as error:
            # As a row: raised, it would come back wrapped, logged and with advice about Ray's retries.
            yield {"receipt": "", "peak_rss_bytes": peak_rss_bytes(), "error": pickle.dumps(error)}


def distil(work: DistilWork, config: DistilConfig, listener: ProgressListener) -> DistilOutcome:
    """Make every shard that is missing.

    A worker that dies is replaced, and what it had begun is completed by another.

    Raises:
        DataError: The dataset folder holds a damaged dataset, or one of other conditions; or too many ids
            are not those that the target emitted.
        EngineError: The engine cannot start, or breaks down.
        ClusterError: Ray gave up, e.g. after its time without progress because workers kept dying.
    """
    storage = open_storage(work.dataset)
    manifest = open_manifest(storage, work.begin_manifest())
    done = manifest.answered_prompts + manifest.rejected_rows
    meter = ProgressMeter("distil", work.prompts.rows, "prompts", listener, done)
    answer_tokens, peak, unfolded, mismatched = 0, 0, 0, manifest.mismatched_prompts
    require_emitted_ids(mismatched, work.prompts.rows, work.engine)
    for row in _receipts(manifest.missing(), work, config):
        shard = JournalEntry.model_validate_json(row["receipt"]).shard
        unfolded += 1
        # Folding costs as much as there is in the manifest: so late, all folds cost as much as the last.
        if unfolded >= max(MIN_FOLD, len(manifest.shards)):
            manifest, unfolded = fold_journal(storage), 0
        mismatched += shard.mismatched_prompts
        require_emitted_ids(mismatched, work.prompts.rows, work.engine)
        answer_tokens += shard.answer_tokens
        peak = max(peak, row["peak_rss_bytes"])
        meter.advance(shard.prompts, f"{answer_tokens} answer tokens")
    # A worker that was replaced may have died while it wrote.
    sweep_dataset(storage)
    return DistilOutcome(
        manifest=fold_journal(storage), worker_peak_rss_bytes=peak, driver_peak_rss_bytes=peak_rss_bytes()
    )


def _receipts(missing: Sequence[int], work: DistilWork, config: DistilConfig) -> Iterator[dict[str, Any]]:
    workers = config.worker_range
    groups = group_shards(missing, workers.max)
    if not groups:
        return
    with _data_settings():
        dataset = ray.data.from_items(
            [{"shards": group} for group in groups], override_num_blocks=len(groups)
        ).flat_map(
            DistilActor,
            fn_constructor_args=(work,),
            # One group in flight per engine: a queue would only keep work from engines that are idle.
            compute=ActorPoolStrategy(
                min_size=min(workers.min, len(groups)),
                max_size=min(workers.max, len(groups)),
                max_tasks_in_flight_per_actor=1,
            ),
            num_cpus=config.cpus_per_worker,
            num_gpus=config.gpus_per_worker or None,
        )
        for row in dataset.iter_rows():
            if row["error"]:
                raise pickle.loads(row["error"])
            yield row


@contextlib.contextmanager
def _data_settings() -> Iterator[None]:
    """Settings of Ray Data for rows that are small and long in the making, and for a quiet log."""
    context, logger = DataContext.get_current(), logging.getLogger("ray.data")
    before, level = context.copy(), logger.level
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A block ends once it is larger than this: every receipt is a block, sent when its shard is published.
    context.target_max_block_size = 1
    # Every worker has one group at a time, so the pool is full at 1 and should grow then.
    context.autoscaling_config = AutoscalingConfig(actor_pool_util_upscaling_threshold=1.0)
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    except RayError as error:
        raise ClusterError(
            f"Ray could not finish the distil stage: {error}. Shards made so far are kept; look at the "
            "memory of the machines, lower distil.workers or the engine's max_batch_size, and start the same "
            "command again."
        ) from error
    finally:
        DataContext._set_current(before)
        logger.setLevel(level)
