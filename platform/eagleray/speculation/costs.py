"""What speculation is worth: tokens of a cycle against its time, in steps of plain decoding.

A cycle of D draft steps takes F + rho D plain steps and commits tau tokens, so it is tau / (F + rho D) times
as fast. The usual (1 + AL) / (1 + rho D), from arXiv 2211.17192, is its case F = 1: verification as cheap
as a plain step and nothing else to do. Measured engines have F of 1.1 (dense) to 1.5 (mixtures of experts,
where more tokens touch more experts).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression


@dataclass(frozen=True, kw_only=True)
class CyclePoint:
    """One measurement of an engine."""

    draft_steps: int
    """Sequential passes of the drafter in a cycle: its depth for a chain, 1 for a block."""
    acceptance_length: float
    """tau."""
    speedup: float
    """Over plain decoding by the same engine, at the same batch."""


@dataclass(frozen=True, kw_only=True)
class CycleCost:
    """Time of a cycle in plain steps, for one engine, tensor parallelism and batch."""

    fixed: float
    """F: verification and everything that is there once a cycle."""
    per_step: float
    """rho: one pass of the drafter."""

    def steps(self, draft_steps: int) -> float:
        """Plain steps that a cycle takes."""
        return self.fixed + self.per_step * draft_steps

    def speedup(self, acceptance_length: float, draft_steps: int) -> float:
        """Over plain decoding."""
        return acceptance_length / self.steps(draft_steps)

    @classmethod
    def fit(cls, points: Sequence[CyclePoint]) -> "CycleCost":
        """Least squares of tau / speedup, which is the time of a cycle, over the draft steps.

        Raises:
            ValueError: All points have the same number of draft steps.
        """
        steps = [point.draft_steps for point in points]
        cycles = [point.acceptance_length / point.speedup for point in points]
        if len(set(steps)) < 2:
            raise ValueError(f"points at draft steps {sorted(set(steps))}; expected at least two different")
        line = linear_regression(steps, cycles)
        return cls(fixed=line.intercept, per_step=line.slope)


def common_speedup(accepted_draft_tokens: float, per_step: float, draft_steps: int) -> float:
    """(1 + AL) / (1 + rho D), which leaves out that verification and the host cost more than a plain step.

    Args:
        accepted_draft_tokens: AL, tau without the bonus token.
    """
    return CycleCost(fixed=1.0, per_step=per_step).speedup(1.0 + accepted_draft_tokens, draft_steps)


def expected_tokens(rate_by_slot: Sequence[float]) -> float:
    """tau of drafts as deep as there are rates: 1 + sum over k of the product of the first k.

    Args:
        rate_by_slot: P(slot k is accepted | all before it are).
    """
    tokens = reached = 1.0
    for rate in rate_by_slot:
        reached *= rate
        tokens += reached
    return tokens


def anomaly(point: CyclePoint) -> str | None:
    """Why a measurement cannot be right; None where it can.

    A cycle verifies, and no verification is faster than a plain step, so a speedup above tau means that the
    plain side was measured badly or in another setting.
    """
    if point.acceptance_length < 1.0:
        return f"tau {point.acceptance_length:.3g} is below 1: a cycle commits at least the bonus token"
    if point.speedup > point.acceptance_length:
        return (
            f"speedup {point.speedup:.3g} is above tau {point.acceptance_length:.3g}: a cycle would be "
            "faster than one plain step. Measure plain decoding again, interleaved with drafting"
        )
    return None


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Devices that share one target by tensor parallelism."""

    bandwidth_bytes_per_s: float
    """Of one device's memory."""
    devices: int = 1
    all_reduce_s: float = 0.0
    """One reduction over all devices; at a few tokens this is latency alone."""
    all_reduce_s_per_byte: float = 0.0
    """What each byte that a device holds of the reduced tensor adds."""
    host_s: float = 0.0
    """A step's time in which no device works."""


@dataclass(frozen=True, kw_only=True)
class StepLoad:
    """What one target forward has to read and reduce."""

    weight_bytes: float
    """Of a mixture of experts only what the tokens touch; see `experts_touched`."""
    kv_bytes: float = 0.0
    layers: int = 0
    hidden_bytes: float = 0.0
    """Hidden states of all tokens of the forward: tokens * width * bytes of a number."""


def step_floor_s(load: StepLoad, hardware: Hardware) -> float:
    """Seconds that a forward takes at least, bound by memory: everything is read once."""
    return (load.weight_bytes + load.kv_bytes) / (hardware.devices * hardware.bandwidth_bytes_per_s)


def step_s(load: StepLoad, hardware: Hardware) -> float:
    """Seconds of a forward: the floor, two reductions in every layer, the host.

    Reductions do not shrink with more devices while the floor does, so a drafter that helps on one device can
    be a loss on eight: verification of several tokens and every draft pass pay the same latency.
    """
    if hardware.devices == 1:
        return step_floor_s(load, hardware) + hardware.host_s
    reduction_s = hardware.all_reduce_s + hardware.all_reduce_s_per_byte * load.hidden_bytes
    return step_floor_s(load, hardware) + 2 * load.layers * reduction_s + hardware.host_s


def experts_touched(experts: int, chosen: int, tokens: int) -> float:
    """Experts of a layer that so many tokens read, if each chooses evenly: why verification is not free."""
    return experts * (1.0 - (1.0 - chosen / experts) ** tokens)


@dataclass(frozen=True, kw_only=True)
class SlowLink:
    """Drafting here, verifying there: what goes over the line is ids, not states."""

    bits_per_s: float
    round_trip_s: float
    """For a message of no length, both ways."""
    overhead_bits: int = 0
    """Of headers, both ways together."""

    def tokens_per_s(
        self, acceptance_length: float, depth: int, vocab_size: int, *, draft_s: float, verify_s: float
    ) -> float:
        """Rate of an answer: up go the drafted ids, down how many were accepted and the bonus id.

        Args:
            draft_s: Time to draft once.
            verify_s: Time to verify once.
        """
        sent_bits = depth * id_bits(vocab_size) + count_bits(depth) + id_bits(vocab_size)
        line_s = self.round_trip_s + (sent_bits + self.overhead_bits) / self.bits_per_s
        return acceptance_length / (draft_s + verify_s + line_s)


def id_bits(vocab_size: int) -> int:
    """Bits of a token id."""
    return max(1, math.ceil(math.log2(vocab_size)))


def count_bits(depth: int) -> int:
    """Bits that say how many of `depth` drafts were accepted."""
    return math.ceil(math.log2(depth + 1))
