"""What to do about an attempt that has ended: a pure decision.

Out of memory is answered with less memory for the same step, in this order: recompute activations, then halve
the micro-batch, which doubles the accumulation. Sequence length and global batch never change, so a recovered
run learns from the same samples in the same steps. Anything else is answered with the same settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from eagleray.settings import Settings
from eagleray.watchdog.verdicts import Kind

Reason = Kind | Literal["oom_exception", "failed"]
"""Why an attempt ended: a verdict, an allocation failure that was raised, or any other failure."""

OUT_OF_MEMORY: tuple[Reason, ...] = ("oom_hang", "oom_exception")


class RecoveryConfig(Settings):
    """How often, and how soon, a run is taken up again."""

    attempts_in_place: int = Field(default=3, ge=1)
    """Attempts in a row that may end without a new checkpoint: a cause that comes back at once will come
    back for ever."""

    attempts: int = Field(default=20, ge=1)
    """Attempts in all."""

    backoff_s: float = Field(default=5.0, ge=0)
    """Seconds before the next attempt; doubled for every attempt in a row without a new checkpoint."""

    backoff_ceiling_s: float = Field(default=300.0, ge=0)
    """Longest wait."""


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """The settings of a step that memory depends on and learning does not."""

    recompute_activations: bool
    micro_batch_size: int
    accumulation: int
    """Micro-batches per rank and step."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt that has ended."""

    reason: Reason
    culprit: int | None
    first_step: int
    """The step of the checkpoint it began from."""
    last_checkpoint_step: int
    memory: StepMemory


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Begin another attempt from the newest checkpoint."""

    memory: StepMemory
    wait_s: float
    why: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Give up; `why` is what a person needs to know."""

    why: str


Decision = Resume | Stop


def decide(history: Sequence[Attempt], config: RecoveryConfig) -> Decision:
    """What to do after the newest attempt of `history`, which is not empty."""
    newest = history[-1]
    in_place = _in_place(history)
    who = "the job" if newest.culprit is None else f"rank {newest.culprit}"
    if len(history) >= config.attempts:
        return Stop(
            why=f"{len(history)} attempts have ended, the newest for {newest.reason} of {who}; "
            f"training.watchdog.recovery.attempts allows {config.attempts}. {_reasons(history)}"
        )
    wait_s = min(config.backoff_s * 2 ** max(0, in_place - 1), config.backoff_ceiling_s)
    if newest.reason in OUT_OF_MEMORY:
        return _with_less_memory(newest, who, wait_s)
    if in_place >= config.attempts_in_place:
        return Stop(
            why=f"{in_place} attempts in a row ended at step {newest.last_checkpoint_step} without a new "
            f"checkpoint, the newest for {newest.reason} of {who}; "
            f"training.watchdog.recovery.attempts_in_place allows {config.attempts_in_place}. "
            f"{_reasons(history)} Look at the incidents of this run, and mend the cause."
        )
    return Resume(memory=newest.memory, wait_s=wait_s, why=f"{newest.reason} of {who}: same settings again")


def _with_less_memory(newest: Attempt, who: str, wait_s: float) -> Decision:
    memory = newest.memory
    if not memory.recompute_activations:
        return Resume(
            memory=replace(memory, recompute_activations=True),
            wait_s=wait_s,
            why=f"{who} ran out of memory: activations are recomputed from now on",
        )
    # An odd micro-batch cannot be halved without changing how many sequences a step has.
    if memory.micro_batch_size % 2 == 0:
        smaller = memory.micro_batch_size // 2
        return Resume(
            memory=replace(memory, micro_batch_size=smaller, accumulation=memory.accumulation * 2),
            wait_s=wait_s,
            why=f"{who} ran out of memory: micro-batches of {smaller} from now on, twice as many",
        )
    return Stop(
        why=f"{who} ran out of memory with activations recomputed and micro-batches of "
        f"{memory.micro_batch_size}. A shorter sequence or a smaller global batch would train something "
        "else, so the run stops. Use devices with more memory or a smaller drafter."
    )


def _in_place(history: Sequence[Attempt]) -> int:
    """Attempts at the end of the history that made no new checkpoint with the settings of the newest."""
    count = 0
    for attempt in reversed(history):
        if attempt.last_checkpoint_step > attempt.first_step or attempt.memory != history[-1].memory:
            break
        count += 1
    return count


def _reasons(history: Sequence[Attempt]) -> str:
    told = ", ".join(f"{attempt.reason} at step {attempt.last_checkpoint_step}" for attempt in history[-5:])
    return f"The newest: {told}."
