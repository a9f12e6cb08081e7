"""The training loop: it knows steps, gradients and checkpoints, and no drafter by name."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from eagleray.corpus.sample import Sample
from eagleray.drafters.base import StepTerms
from eagleray.errors import ConfigError, NumericsError
from eagleray.training.backends.base import Backend, Weights
from eagleray.training.batches import BatchPlan
from eagleray.training.checkpoint import Checkpoint, CheckpointFolder, load_checkpoint
from eagleray.training.checkpoint_writer import CheckpointWriter
from eagleray.training.collate import collate
from eagleray.training.config import TrainingConfig
from eagleray.training.determinism import deterministic
from eagleray.training.features import FeatureSource
from eagleray.training.held_out import replay_tau
from eagleray.training.learning_curve import early_trials
from eagleray.training.mirror import CheckpointMirror
from eagleray.training.rows import TrainingRows
from eagleray.training.schedule import rate_factor, warmup_steps
from eagleray.training.state import TrainingState
from eagleray.training.totals import StepTotals, add_up
from eagleray.training.warm_start import WarmStart, announce_dip, check_first_loss
from eagleray.watchdog.heartbeat import Heartbeat, NoHeartbeat


class Reporter(Protocol):
    """Whoever follows a run. All calls come from every rank, in the same order."""

    def report(self, metrics: dict[str, float]) -> None:
        """Take the figures of a step."""
        ...

    def save(self, checkpoint: Path | None) -> None:
        """A checkpoint is being written there; None on the ranks that do not write it."""
        ...

    def should_stop(self) -> bool:
        """True to end the run after the next step, with a checkpoint."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Everything one rank needs to train."""

    config: TrainingConfig
    backend: Backend
    """Holds the drafter, the same on every rank."""
    rows: TrainingRows
    held_out: Sequence[Sample]
    """Kept out of training, for replay tau; with none of them it is not measured."""
    source: FeatureSource
    checkpoints: CheckpointFolder
    reporter: Reporter
    fingerprint: str
    """Of everything that must not change over a resume."""
    warm_start: WarmStart | None = None
    """What is known of the weights that the drafter begins with; None: they are random."""
    mirror: CheckpointMirror | None = None
    """Gets copies of the checkpoints."""
    heartbeat: Heartbeat = field(default_factory=NoHeartbeat)


def train(job: TrainingJob) -> TrainingState:
    """Run from the newest whole checkpoint, or from the drafter as it is, to the last step.

    Raises:
        ConfigError: The checkpoint belongs to other settings or data; a warm start is none; an operation is
            not deterministic, and was to be.
        ArtifactError: There are checkpoints, but none is whole.
        NumericsError: A loss or gradient is not finite.
    """
    with deterministic(job.config.deterministic):
        return _train(job)


def _train(job: TrainingJob) -> TrainingState:
    config, plan = job.config, job.rows.plan()
    total_steps = plan.total_steps(config.epochs, config.max_steps)
    early, writer = early_trials(total_steps), CheckpointWriter(job.checkpoints, job.mirror)
    state = resume(job)
    if job.warm_start is not None and state.step == 0:
        announce_dip(warmup_steps(total_steps, config))
    stopping = False
    while state.step < total_steps and not stopping:
        started_s = time.perf_counter()
        totals = accumulate(job, plan, state.step)
        if job.warm_start is not None and state.step == 0:
            check_first_loss(totals.loss, job.warm_start)
        job.heartbeat.enter("optimizer")
        factor = rate_factor(state.step, total_steps, config)
        grad_norm = job.backend.update(totals.weight_sum, factor)
        if not math.isfinite(grad_norm):
            raise NumericsError(
                f"Gradient norm of step {state.step} is {grad_norm}. Lower training.learning_rate."
            )
        state = state.after(supervised_tokens=totals.supervised_tokens, loss=totals.loss)
        job.heartbeat.stepped(state.step)
        step_s = time.perf_counter() - started_s
        stopping = totals.stop_requests > 0
        ended = state.step == total_steps
        replayed: dict[str, float] = {}
        regular = ended or state.step % config.replay_every_steps == 0
        if job.held_out and (regular or state.step in early):
            job.heartbeat.enter("evaluate")
            with job.backend.whole() as drafter:
                tau = replay_tau(drafter, job.held_out, job.source, config)
            replayed = {"replay_tau": tau}
            state = state.judged(tau) if regular else state
        job.reporter.report(
            {
                "step": state.step,
                "total_steps": total_steps,
                "epoch": state.step / plan.steps_per_epoch,
                "loss": totals.loss,
                "grad_norm": grad_norm,
                "learning_rate": config.learning_rate * factor,
                "supervised_tokens": state.supervised_tokens,
                "step_s": step_s,
                **replayed,
                **({"mirror_missed": job.mirror.missed} if job.mirror is not None else {}),
                **{f"accuracy_slot_{k}": value for k, value in enumerate(totals.accuracy(), start=1)},
            }
        )
        due = state.step % config.checkpoint_every_steps == 0 or state.step == state.best_step
        if due or ended or stopping:
            job.heartbeat.enter("checkpoint")
            job.reporter.save(write_checkpoint(job, state, writer))
    writer.wait()
    return state


def accumulate(job: TrainingJob, plan: BatchPlan, step: int) -> StepTotals:
    """Forward and backward of this rank's micro-batches; gradients meet after the last.

    Raises:
        NumericsError: A loss is not finite; the message names the samples.
    """
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    size, row_tokens = job.config.micro_batch_size, job.config.row_tokens
    shares = plan.micro_batches(step, rank=rank, ranks=ranks, micro_batch_size=size, row_tokens=row_tokens)
    backend = job.backend
    device = next(backend.drafter.parameters()).device
    low_precision = job.config.compute_dtype == "bfloat16"
    terms: list[StepTerms] = []
    supervised_tokens = 0
    for share in shares:
        rows = [job.rows[index] for index in share]
        seed = job.config.seed * 1_000_003 + step
        job.heartbeat.enter(job.source.phase)
        batch = collate(rows, job.source, seed=seed, device=device, row_tokens=row_tokens)
        last = len(terms) == len(shares) - 1
        with backend.micro_batch(last=last):
            job.heartbeat.enter("forward")
            with torch.autocast(device.type, torch.bfloat16, enabled=low_precision):
                micro: StepTerms = backend.module(batch)
            job.heartbeat.enter("backward")
            backend.backward(micro.loss_sum)
        if not torch.isfinite(micro.loss_sum):
            raise NumericsError(
                f"Loss of step {step} is {micro.loss_sum.item()} on samples "
                f"{', '.join(row.sample.sample_id for row in rows)}. Look at their features, or lower "
                "training.learning_rate."
            )
        terms.append(micro)
        supervised_tokens += sum(row.supervised_tokens for row in rows)
    job.heartbeat.enter_collective()
    return add_up(terms, supervised_tokens, stop_requested=job.reporter.should_stop())


def resume(job: TrainingJob) -> TrainingState:
    """Load the newest whole checkpoint into drafter and optimiser; a fresh state when there is none.

    Raises:
        ConfigError: It was written under another fingerprint.
    """
    folder = job.checkpoints.newest()
    if folder is None:
        return TrainingState(fingerprint=job.fingerprint)
    checkpoint = load_checkpoint(folder)
    if checkpoint.state.fingerprint != job.fingerprint:
        raise ConfigError(
            f"Checkpoint {folder} belongs to fingerprint {checkpoint.state.fingerprint}; this run has "
            f"{job.fingerprint}: settings, dataset or target changed. Use another run.name to start afresh."
        )
    job.backend.load(checkpoint.weights, checkpoint.optimizer)
    torch.set_rng_state(checkpoint.rng)
    return checkpoint.state


def best_weights(job: TrainingJob, state: TrainingState) -> Weights:
    """Weights with the best replay tau; the last ones if none was measured.

    Raises:
        ArtifactError: That checkpoint is not whole.
    """
    step = state.step if state.best_step is None else state.best_step
    return load_checkpoint(job.checkpoints.of_step(step)).weights


def write_checkpoint(job: TrainingJob, state: TrainingState, writer: CheckpointWriter) -> Path | None:
    """Gather what the ranks hold, and begin to write a copy of it on the first."""
    weights, optimizer = job.backend.weights(), job.backend.optimizer_state()
    if dist.is_initialized() and dist.get_rank() != 0:
        return None
    checkpoint = Checkpoint(
        weights={name: tensor.clone() for name, tensor in weights.items()},
        optimizer={
            name: {key: tensor.clone() for key, tensor in remembered.items()}
            for name, remembered in optimizer.items()
        },
        rng=torch.get_rng_state(),
        state=state,
    )
    return writer.save(checkpoint)
