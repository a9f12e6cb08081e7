"""Acceptance statistics from per-cycle counts: the one place where tau is computed.

One cycle = draft + verify. Acceptance length (tau) is the mean number of tokens committed per
target verification, including the bonus token, pooled over all cycles; the token that prefill
yields is not counted, and tokens cut by a stop or a limit are not counted. Plain decoding is 1.0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DEFINITION = (
    "tokens delivered per target verification, bonus token included, prefill excluded, pooled over cycles"
)


@dataclass(frozen=True, slots=True)
class Cycle:
    """Counts of one verification."""

    drafted: int
    """Draft tokens that were verified, of a tree those on its deepest path (0 in plain decoding)."""

    accepted: int
    """Draft tokens delivered: the accepted prefix, less what a stop or limit cut off. 0..drafted."""

    delivered: int
    """Tokens committed to the answer by this cycle, bonus included, after cuts. accepted..accepted+1."""


def cut_cycles(drafted: Sequence[int], accepted: Sequence[int], *, answer_tokens: int) -> tuple[Cycle, ...]:
    """Our cycles from an engine's counts per verification, which are taken before a stop or limit cuts.

    Args:
        drafted: Draft tokens that each verification of one answer judged, in order.
        accepted: How many of them agreed with the target.
        answer_tokens: Length of the whole answer; its first token comes from prefill.

    Returns:
        One cycle per verification. Tokens that none of them accounts for were decoded without a draft, one
        at a time; engines do not count such steps, and here they come last.

    Raises:
        ValueError: There are more verifications than tokens: the counts are not of this answer.
    """
    cycles: list[Cycle] = []
    left = answer_tokens - 1
    for proposed, agreed in zip(drafted, accepted, strict=True):
        if left == 0:
            raise ValueError(f"{len(accepted)} verifications for an answer of {answer_tokens} tokens")
        delivered = min(agreed + 1, left)
        cycles.append(Cycle(drafted=proposed, accepted=min(agreed, delivered), delivered=delivered))
        left -= delivered
    return (*cycles, *[Cycle(drafted=0, accepted=0, delivered=1)] * left)


@dataclass(frozen=True, slots=True)
class AcceptanceSummary:
    """Pooled acceptance of a set of cycles."""

    cycles: int
    delivered_tokens: int
    accepted_draft_tokens: int
    drafted_tokens: int
    acceptance_length: float
    """tau; 1.0 = the drafter never helps. 0.0 when there was no cycle."""
    acceptance_rate_by_slot: tuple[float, ...]
    """Slot k (0-based): of the cycles whose slots before k were all accepted, the share where k was too."""


def summarize(cycles: Iterable[Cycle]) -> AcceptanceSummary:
    """Pool per-cycle counts.

    A slot enters the denominator of its rate only where it was drafted, every slot before it was
    accepted, and the answer did not end before it was judged.
    """
    reached: list[int] = []
    passed: list[int] = []
    count = delivered = accepted = drafted = 0
    for cycle in cycles:
        count += 1
        delivered += cycle.delivered
        accepted += cycle.accepted
        drafted += cycle.drafted
        if cycle.drafted > len(reached):
            extra = cycle.drafted - len(reached)
            reached.extend([0] * extra)
            passed.extend([0] * extra)
        for slot in range(cycle.accepted):
            reached[slot] += 1
            passed[slot] += 1
        # A bonus token was delivered, so the slot after the accepted prefix was judged and rejected.
        if cycle.delivered > cycle.accepted and cycle.accepted < cycle.drafted:
            reached[cycle.accepted] += 1
    return AcceptanceSummary(
        cycles=count,
        delivered_tokens=delivered,
        accepted_draft_tokens=accepted,
        drafted_tokens=drafted,
        acceptance_length=delivered / count if count else 0.0,
        acceptance_rate_by_slot=tuple(p / r if r else 0.0 for p, r in zip(passed, reached, strict=True)),
    )
