"""Training on Ray Train: placement, restarts and progress around the plain training loop.

Checkpoints are the loop's own: atomic, hashed, readable without Ray. Ray is not given them to manage:
its record of a run refuses to start once a checkpoint that it knew was pruned. When a worker dies the
next attempt, when the driver dies the next start of the run continues from the newest whole checkpoint.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.exceptions import RayTaskError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from eagleray.cluster.attempts import ray_folder, run_attempts
from eagleray.cluster.context import RunContext
from eagleray.cluster.last_resorts import (
    driver_environment,
    exchange_timeout_s,
    set_where_unset,
    worker_environment,
)
from eagleray.cluster.machines import RayMachines
from eagleray.cluster.progress_watch import ProgressWatch
from eagleray.cluster.rank_watch import Watched
from eagleray.cluster.reporter import METRICS, FirstReporter, RayReporter
from eagleray.cluster.stage import StageOutcome
from eagleray.cluster.streaming import (
    STREAM,
    capture_held_out,
    in_order,
    open_stream,
    plan_batches,
    plan_stream,
    take_shard,
)
from eagleray.cluster.train_work import TrainWork
from eagleray.corpus.dataset import iter_samples, read_complete_manifest
from eagleray.corpus.packed import PackedSamples, pack
from eagleray.corpus.sample import Sample
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.folder import drafter_hash, export_drafter
from eagleray.engines.catalog import native_device
from eagleray.errors import EagleRayError
from eagleray.files import write_json_atomically
from eagleray.monitoring.memory import peak_rss_bytes
from eagleray.settings import fingerprint
from eagleray.speculation.acceptance import DEFINITION
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.feature_store import FeatureStore, feature_dtype
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import FrozenHeads, load_heads
from eagleray.targets.loading import resolve_target
from eagleray.training.backends.catalog import open_backend
from eagleray.training.checkpoint import CheckpointFolder
from eagleray.training.collate import collate
from eagleray.training.config import TrainingConfig
from eagleray.training.features import ColocatedFeatures, FeatureSource, StoredFeatures
from eagleray.training.held_out import replay_depth
from eagleray.training.learning_curve import describe_curve, read_curve
from eagleray.training.loop import TrainingJob, best_weights, train
from eagleray.training.measured import activation_ratio, memory_of
from eagleray.training.memory import MemoryPlan, check_memory, plan_memory
from eagleray.training.metrics_log import MetricsLog, thin_out
from eagleray.training.mirror import CheckpointMirror
from eagleray.training.parity_gate import GateOutcome, check_parity, gate_samples
from eagleray.training.preflight import check_samples
from eagleray.training.recompute import recompute_activations
from eagleray.training.rows import TrainingRows, first_row
from eagleray.training.state import TrainingState
from eagleray.training.step_clock import StepClock
from eagleray.training.vocabulary import supervised_counts
from eagleray.training.warm_start import TRAINING_LOSS, load_warm_start
from eagleray.watchdog.heartbeat import Heartbeat

START_FAILURES = 3
"""Times that a worker group may fail to start before an attempt does."""
LOSS_CURVE_POINTS = 200
FACTS = "facts.json"
"""What only a worker knows at the end: memory, size, and the settings that recovery left it."""


def train_worker(config: dict[str, Any]) -> None:
    """One rank, watched from its first line to its last."""
    work = TrainWork.model_validate(config)
    rank = ray.train.get_context().get_world_rank()
    with Watched(work.heartbeats, work.run, rank, get_device()) as heartbeat:
        train_rank(work, heartbeat)


def train_rank(work: TrainWork, heartbeat: Heartbeat) -> None:
    """Build, train from the newest checkpoint, and on the first rank export."""
    # A confident drafter's gradients have squares below what float32 holds in full; CPUs take such
    # denormal numbers so slowly that a step took 1.8 times as long after 150 steps as at the start.
    torch.set_flush_denormal(True)
    device = get_device()
    source, heads = open_features(work)
    samples, held_out = work.split()
    torch.manual_seed(work.training.seed)
    counts_V = supervised_counts(samples, heads.geometry.vocab_size)
    drafter = build_trainable_drafter(work.drafter, heads, counts_V)
    start = work.training.start
    vocab_size = heads.geometry.vocab_size
    warm = load_warm_start(drafter, start, vocab_size) if start.how == "warm_start" else None
    drafter.to(device)
    if work.training.recompute_activations:
        recompute_activations(drafter)
    first = ray.train.get_context().get_world_rank() == 0
    clock = StepClock(heartbeat)
    reporter = FirstReporter(work.run, clock, work.training.learning_rate) if first else RayReporter()
    job = TrainingJob(
        config=work.training,
        backend=open_backend(drafter, work.training, clock),
        rows=TrainingRows(samples, work.training),
        held_out=held_out,
        source=source,
        checkpoints=CheckpointFolder(work.run, work.training.keep_checkpoints),
        reporter=reporter,
        fingerprint=work.fingerprint,
        heartbeat=clock,
        warm_start=warm,
        mirror=CheckpointMirror(work.mirror) if first and work.mirror else None,
    )
    state = train(job)
    reporter.close()
    heartbeat.enter("checkpoint")
    peak = torch.tensor([peak_rss_bytes()], dtype=torch.int64, device=device)
    if dist.is_initialized():
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if first:
        replayed = describe_replay(job, state)
        best = build_trainable_drafter(work.drafter, heads, counts_V)
        best.load_state_dict(best_weights(job, state))
        profile = {**work.profile, "replay": replayed, TRAINING_LOSS: state.loss_average}
        export_drafter(best, work.export, profile)
        facts = {
            "peak_rss_bytes": int(peak.item()),
            "num_parameters": best.num_parameters(),
            "replay": replayed,
            "micro_batch_size": work.training.micro_batch_size,
            "recompute_activations": work.training.recompute_activations,
        }
        write_json_atomically(work.run / FACTS, facts)
    if job.mirror is not None:
        job.mirror.finish()


def describe_replay(job: TrainingJob, state: TrainingState) -> dict[str, Any] | None:
    """How the exported checkpoint was chosen; None where no replay tau was measured."""
    if state.best_step is None:
        return None
    return {
        "step": state.best_step,
        "tau": state.best_replay_tau,
        "tau_definition": DEFINITION,
        "depth": replay_depth(job.backend.drafter, job.config),
        "samples": len(job.held_out),
    }


def open_features(work: TrainWork) -> tuple[FeatureSource, FrozenHeads]:
    """The feature source that the recipe names, and the frozen parts of the target it goes with."""
    folder = resolve_target(work.target)
    dtype = getattr(torch, work.target.dtype)
    layers = work.drafter.tapped_layers(TargetGeometry.read(folder).num_layers)
    if work.training.features == "colocated":
        decoder = TargetDecoder.load(folder, dtype)
        return ColocatedFeatures(decoder, layers), decoder.heads
    if work.training.features == "streamed":
        return take_shard(work, layers), load_heads(folder, dtype)
    store = FeatureStore(work.features, work.feature_layers, feature_dtype(work.feature_store))
    return StoredFeatures(
        store, layers, cache_bytes=int(work.training.feature_cache_gib * 2**30)
    ), load_heads(folder, dtype)


def run_gate(work: TrainWork, samples: list[Sample]) -> tuple[GateOutcome, MemoryPlan, int]:
    """Put a fresh drafter through the parity gate, in a process that can hold the target.

    Returns:
        What the gate saw, what a rank's memory will hold by a step that was run, and the device's bytes.
    """
    device = native_device()
    decoder = TargetDecoder.load(resolve_target(work.target), getattr(torch, work.target.dtype), device)
    torch.manual_seed(work.training.seed)
    drafter = build_trainable_drafter(
        work.drafter, decoder.heads, supervised_counts(samples, decoder.geometry.vocab_size)
    )
    drafter.to(device)
    source = ColocatedFeatures(decoder, drafter.tapped_layers)
    rows = [first_row(sample, work.training.max_length) for sample in samples]
    batch = collate(rows, source, seed=0, device=decoder.device)
    geometry = decoder.geometry
    ratio = activation_ratio(drafter, batch, work.drafter, work.training, geometry)
    bytes_each = getattr(torch, work.target.dtype).itemsize
    memory = plan_memory(work.drafter, work.training, geometry, bytes_each, ratio)
    outcome = check_parity(drafter, decoder, samples, work.training)
    return outcome, memory, memory_of(decoder.device)


def gate(work: TrainWork, samples: Sequence[Sample], section: str) -> GateOutcome | None:
    """Run the parity gate before the first step of a run; None where it has begun or the gate is off.

    Args:
        section: Dotted name of the training settings.

    Raises:
        NumericsError: Training step, export, drafting session or replay disagree.
        ConfigError: A rank's memory will not suffice.
    """
    chosen = gate_samples(samples)
    begun = CheckpointFolder(work.run, work.training.keep_checkpoints).newest() is not None
    if begun or not chosen or not work.training.parity_gate:
        return None
    gpus = has_gpus(work.training)
    task = ray.remote(run_gate).options(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=1)
    try:
        outcome, memory, device_bytes = ray.get(task.remote(work, chosen))
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, EagleRayError) else error from None
    # Ranks on CPUs share the memory of their machine.
    sharing = 1 if gpus else math.ceil(work.training.workers / len(ray.nodes()))
    check_memory(memory, device_bytes // sharing, work.training, section)
    passed: GateOutcome = outcome
    return passed


def has_gpus(training: TrainingConfig) -> bool:
    """Whether workers have a GPU each."""
    return bool(ray.cluster_resources().get("GPU", 0) >= training.workers)


def training_work(run: RunContext, label: str) -> TrainWork:
    """What the workers of a drafter's training must know; packs the dataset for them.

    Raises:
        DataError: The dataset is not complete.
    """
    section = run.recipe.drafters[label]
    manifest = read_complete_manifest(run.dataset)
    packed = run.folder.training / label / f"samples-{manifest.content_hash()[:16]}.arrow"
    if not packed.exists():
        pack(iter_samples(run.dataset, manifest), packed)
    return TrainWork(
        target=run.recipe.target,
        drafter=section.drafter,
        training=section.training,
        samples=packed,
        features=run.folder.features,
        feature_layers=run.feature_layers,
        feature_store=run.recipe.feature_store,
        run=run.folder.training / label,
        export=run.folder.drafter(label),
        mirror=section.training.mirror and f"{section.training.mirror}/{run.recipe.run.name}/{label}",
        profile={
            "target_hash": run.identity.target_hash,
            "tokenizer_hash": run.identity.tokenizer_hash,
            "template_hash": run.identity.template_hash,
            "dataset_hash": manifest.content_hash(),
            "dtype": run.recipe.target.dtype,
            "trained_length": section.training.max_length,
        },
        fingerprint=fingerprint(
            [
                manifest.content_hash(),
                section.what_is_learned(),
                run.identity.target_hash,
            ]
        ),
    )


def train_drafter(run: RunContext, label: str) -> StageOutcome:
    """Preflight, train and export one drafter of a run.

    Raises:
        DataError: Preflight found the dataset unfit.
        ClusterError: The worker group kept failing.
    """
    section = run.recipe.drafters[label]
    folder = run.folder.training / label
    work = training_work(run, label)
    kept, truncation = check_samples(
        PackedSamples(work.samples), run.geometry, section.training, f"drafters.{label}.training"
    )
    checkpoints = CheckpointFolder(folder, section.training.keep_checkpoints)
    if work.mirror is not None:
        CheckpointMirror(work.mirror).restore(checkpoints)
    if section.training.start.how == "resume":
        checkpoints.adopt(section.training.start.checkpoints)
    passed = gate(work, kept, f"drafters.{label}.training")
    # Decided once: a cluster that loses its GPUs must not go on without.
    gpus = has_gpus(section.training)
    with ProgressWatch(MetricsLog(folder / METRICS), f"train {label}", run.listener):
        run_attempts(
            lambda training, heartbeats: fit(work, training, heartbeats, label, gpus=gpus),
            section.training,
            folder,
            run.folder.incidents,
            label,
            RayMachines(section.training, label, gpus=gpus),
        )
    steps = MetricsLog(folder / METRICS).read()
    worker_facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    return StageOutcome(
        peak_rss_bytes=worker_facts["peak_rss_bytes"],
        facts={
            "label": label,
            "drafter_hash": drafter_hash(work.export),
            "num_parameters": worker_facts["num_parameters"],
            "parity_gate": passed.model_dump() if passed else None,
            "replay": worker_facts["replay"],
            "truncation": truncation.model_dump(mode="json"),
            "learning_curve": describe_curve(read_curve(steps)),
            "left_out_per_epoch": plan_batches(work)[1].left_out_per_epoch,
            "training": {
                "steps": len(steps),
                "tokens": int(steps[-1]["supervised_tokens"]),
                "seconds": sum(step["step_s"] for step in steps),
                "loss_curve": thin_out([(int(s["step"]), s["loss"]) for s in steps], LOSS_CURVE_POINTS),
            },
        },
    )


def fit(
    work: TrainWork, training: TrainingConfig, heartbeats: Path | None, label: str, *, gpus: bool
) -> None:
    """One attempt: run the worker group to its end, or to its first failure.

    Raises:
        TrainingFailedError: A rank failed or was killed, or the group could not be started.
    """
    attempt = work.model_copy(update={"training": training, "heartbeats": heartbeats})
    set_where_unset(driver_environment(training.watchdog, nccl=gpus))
    datasets: dict[str, ray.data.Dataset] = {}
    if training.features == "streamed":
        capture_held_out(attempt, gpus=gpus)
        steps = plan_stream(attempt)
        if steps.first_step < steps.end_step:
            datasets[STREAM] = open_stream(attempt, steps, gpus=gpus)
    TorchTrainer(
        train_worker,
        datasets=datasets,
        dataset_config=in_order(),
        train_loop_config=attempt.model_dump(mode="json"),
        torch_config=TorchConfig(
            backend="nccl" if gpus else "gloo", timeout_s=exchange_timeout_s(training.watchdog)
        ),
        scaling_config=ScalingConfig(
            num_workers=training.workers, use_gpu=gpus, resources_per_worker={"CPU": 1}
        ),
        run_config=RunConfig(
            name=label,
            storage_path=str(ray_folder(work.run)),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=START_FAILURES),
            # NCCL and cuBLAS read their environment before the first line of a worker runs, or soon after.
            worker_runtime_env=worker_environment(
                heartbeats, nccl=gpus, deterministic=training.deterministic
            ),
        ),
    ).fit()
