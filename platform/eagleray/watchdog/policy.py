"""What to do about an attempt that has ended: a pure decision.

Out of memory is answered with less memory for the same step, in this order: recompute activations, then halve
the micro-batch, which doubles the accumulation. Sequence length and global batch never change, so a recovered
run learns from the same samples in the same steps. Anything else is answered with the same settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from eagleray.watchdog.config import RecoveryConfig
from eagleray.watchdog.verdicts import Kind

Reason = Kind | Literal["oom_exception", "failed"]
"""Why an attempt ended: a verdict, an allocation failure that was raised, or any other failure."""

OUT_OF_MEMORY: tuple[Reason, ...] = ("oom_hang", "oom_exception")


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """The settings of a step that memory depends on and learning does not."""

    recompute_activations: bool
    micro_batch_size: int
    sequences: int
    """Of one rank in one step: what micro-batches share out, and what never changes."""

    @property
    def accumulation(self) -> int:
        """Micro-batches per rank and step."""
        return -(-self.sequences // self.micro_batch_size)


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
    if memory.micro_batch_size > 1:
        smaller = replace(memory, micro_batch_size=memory.micro_batch_size // 2)
        return Resume(
            memory=smaller,
            wait_s=wait_s,
            why=f"{who} ran out of memory: {smaller.accumulation} micro-batches of "
            f"{smaller.micro_batch_size} from now on, instead of {memory.accumulation} of "
            f"{memory.micro_batch_size}",
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
