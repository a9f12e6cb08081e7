"""Attempts at a training, one after another, until one comes through or recovery gives up.

Every attempt is a fit of Ray Train of its own without retries: what the next one looks like depends on why
the last one ended, and that is decided by `watchdog/policy.py`.
"""

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from ray.exceptions import RayError
from ray.train import NCCLHangError, TrainingFailedError

from eagleray import errors
from eagleray.cluster.machines import Machines
from eagleray.cluster.rank_watch import LAST_WORDS, read_last_words
from eagleray.cluster.watch import RunWatch, heartbeat_folder
from eagleray.errors import ClusterError, EagleRayError
from eagleray.training.checkpoint import CheckpointFolder
from eagleray.training.config import TrainingConfig
from eagleray.training.room import GiveUp, choose_workers
from eagleray.watchdog.policy import Attempt, Reason, StepMemory, Stop, decide
from eagleray.watchdog.verdicts import Verdict

Fit = Callable[[TrainingConfig, Path | None], None]
"""Runs one attempt with these settings, its ranks keeping heartbeats in this folder.

Raises:
    TrainingFailedError: It failed.
    RayError: What controls it failed.
"""

Failure: TypeAlias = TrainingFailedError | RayError
"""Of the worker group, or of the process that controls it."""

TOLD_CHARACTERS = 300
LOOK_FOR_ROOM_S = 2.0
HANG_DETECTOR = "hang_detector"
"""Folder of Ray's own detector, in that of a run of Ray Train."""

logger = logging.getLogger(__name__)


def run_attempts(
    fit: Fit, training: TrainingConfig, run: Path, incidents: Path, label: str, machines: Machines
) -> None:
    """Fit until it comes through, each time with as many workers as there is room for.

    Raises:
        EagleRayError: A rank raised it: trying again would give the same.
        ClusterError: Recovery gave up, or too few machines are left; the message says why.
    """
    checkpoints = CheckpointFolder(run, training.keep_checkpoints)
    memory = step_memory(training)
    history: list[Attempt] = []
    while True:
        shutil.rmtree(run / LAST_WORDS, ignore_errors=True)
        first_step = _newest_step(checkpoints)
        placed = training.model_copy(update={"workers": await_room(training, machines, label)})
        ending, error = _attempt(fit, with_memory(placed, memory), run, incidents, label)
        if error is None:
            return
        told = who_saw_what(run, ending, error)
        logger.warning("Attempt %d of %s ended. %s", len(history) + 1, label, told)
        reason, culprit = why_ended(run, ending)
        history.append(
            Attempt(
                reason=reason,
                culprit=culprit,
                first_step=first_step,
                last_checkpoint_step=_newest_step(checkpoints),
                memory=memory,
            )
        )
        decision = decide(history, training.watchdog.recovery)
        if isinstance(decision, Stop):
            raise ClusterError(
                f"Training {label} stopped: {decision.why} Checkpoints in {run} and incidents in {incidents} "
                f"are kept; mend the cause and start the same command again. The newest error: {error}"
            ) from error
        logger.warning("Training %s goes on in %g s: %s.", label, decision.wait_s, decision.why)
        memory = decision.memory
        time.sleep(decision.wait_s)


def await_room(training: TrainingConfig, machines: Machines, label: str) -> int:
    """The workers of the next attempt, once there is room for them; an autoscaler is asked for it meanwhile.

    Raises:
        ClusterError: There is none, and will be none for all that is known.
    """
    try:
        return _await_room(training, machines, label)
    finally:
        machines.withdraw()


def _await_room(training: TrainingConfig, machines: Machines, label: str) -> int:
    began_s, told = time.monotonic(), ""
    while True:
        chosen = choose_workers(training, machines.room(), time.monotonic() - began_s)
        if isinstance(chosen, GiveUp):
            raise ClusterError(f"Training {label} stopped: {chosen.why}")
        if isinstance(chosen, int):
            if chosen < training.workers:
                logger.warning("Training %s goes on with %d of %d workers.", label, chosen, training.workers)
            return chosen
        if chosen.why != told:
            told = chosen.why
            limit_s = training.wait_for_machines_s
            logger.warning("Training %s waits, at most %g s: %s.", label, limit_s, told)
        machines.ask()
        time.sleep(LOOK_FOR_ROOM_S)


def _attempt(
    fit: Fit, training: TrainingConfig, run: Path, incidents: Path, label: str
) -> tuple[Verdict | None, Failure | None]:
    if not training.watchdog.enabled:
        return None, _failure(fit, training, None)
    folder = heartbeat_folder(run)
    evidence = ray_folder(run) / label / HANG_DETECTOR
    watch = RunWatch(folder, incidents, evidence, label, training.workers, training.watchdog)
    with watch:
        error = _failure(fit, training, folder)
        if isinstance(error, NCCLHangError):
            watch.take_over(error)
    return watch.ending, error


def _failure(fit: Fit, training: TrainingConfig, folder: Path | None) -> Failure | None:
    try:
        fit(training, folder)
    except (TrainingFailedError, RayError) as error:
        return error
    return None


def ray_folder(run: Path) -> Path:
    """Where Ray Train keeps its record of a training, by label."""
    return run / "ray"


def why_ended(run: Path, ending: Verdict | None) -> tuple[Reason, int | None]:
    """The reason of a failed attempt, and the rank it began with.

    Raises:
        EagleRayError: A rank raised it.
    """
    words = read_last_words(run)
    for rank, said in words.items():
        if said["out_of_memory"]:
            return "oom_exception", rank
    for said in words.values():
        if said["ours"]:
            kind: type[EagleRayError] = getattr(errors, str(said["error"]))
            raise kind(said["message"])
    if ending is not None:
        return ending.kind, ending.culprit
    return "failed", next((rank for rank, said in words.items() if not said["of_a_peer"]), None)


def who_saw_what(run: Path, ending: Verdict | None, error: Failure) -> str:
    """A sentence for every layer that may see the end of an attempt."""
    culprit = "no single rank" if ending is None or ending.culprit is None else f"rank {ending.culprit}"
    watchdog = "nothing that ends one" if ending is None else f"{ending.kind} of {culprit}"
    said = [f"rank {rank}: {words['error']}" for rank, words in sorted(read_last_words(run).items())]
    ray = "its detector over NCCL, " if isinstance(error, NCCLHangError) else ""
    return (
        f"The watchdog saw {watchdog}. Ranks that failed said {', '.join(said) or 'nothing'}. "
        f"Ray Train told of {ray}{type(error).__name__}: {' '.join(str(error).split())[:TOLD_CHARACTERS]}"
    )


def step_memory(training: TrainingConfig) -> StepMemory:
    """What memory depends on in a step of these settings."""
    sequences = training.global_batch_size // training.workers
    return StepMemory(
        recompute_activations=training.recompute_activations,
        micro_batch_size=min(training.micro_batch_size, sequences),
        sequences=sequences,
    )


def with_memory(training: TrainingConfig, memory: StepMemory) -> TrainingConfig:
    """The same step in other pieces."""
    return training.model_copy(
        update={
            "recompute_activations": memory.recompute_activations,
            "micro_batch_size": memory.micro_batch_size,
        }
    )


def _newest_step(checkpoints: CheckpointFolder) -> int:
    folder = checkpoints.newest()
    return 0 if folder is None else checkpoints.step_of(folder)
