"""Acceptance from a server's counters, for answers that do not tell it themselves.

Two readings enclose some answers; nobody else may ask meanwhile, as counters know no requests. An engine
counts drafts before a stop or a limit cuts an answer, and does not count steps without a draft at all, so
its own mean, 1 + accepted / drafts, is of another thing than our tau. Here both ends are put right as far as
counts of tokens allow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

from eagleray.errors import EngineError
from eagleray.speculation.acceptance import AcceptanceSummary

_PREFIX = "vllm:spec_decode_num_"


@dataclass(frozen=True, kw_only=True)
class SpeculationCounters:
    """What a server has drafted since it was started."""

    drafts: int
    """Verifications of a draft."""
    drafted: int
    accepted: int
    accepted_by_slot: tuple[int, ...]
    """Drafts of which at least slot k (0-based) was accepted."""

    @classmethod
    def read(cls, metrics: str) -> "SpeculationCounters":
        """From the text of vLLM's `/metrics`, all its engines together.

        Raises:
            EngineError: It holds no such counters.
        """
        totals: dict[str, int] = {}
        by_slot: dict[int, int] = {}
        try:
            samples = list(_samples(metrics))
        except ValueError:
            samples = []
        for name, labels, value in samples:
            if name == "accepted_tokens_per_pos_total":
                slot = int(labels["position"])
                by_slot[slot] = by_slot.get(slot, 0) + value
            else:
                totals[name] = totals.get(name, 0) + value
        try:
            return cls(
                drafts=totals["drafts_total"],
                drafted=totals["draft_tokens_total"],
                accepted=totals["accepted_tokens_total"],
                accepted_by_slot=tuple(by_slot[slot] for slot in sorted(by_slot)),
            )
        except KeyError as missing:
            raise EngineError(
                f"The server's /metrics hold no counter {_PREFIX}{missing.args[0]}: it does not speculate, "
                "or its version has another name for it."
            ) from None

    def since(self, before: "SpeculationCounters") -> "SpeculationCounters":
        """What was added after an earlier reading.

        Raises:
            EngineError: A counter has fallen.
        """
        if self.drafts < before.drafts:
            raise EngineError(
                f"The server's counters fell from {before.drafts} drafts to {self.drafts}: it was started "
                "anew while it answered. Measure again."
            )
        earlier = (*before.accepted_by_slot, *[0] * len(self.accepted_by_slot))
        by_slot = (now - then for now, then in zip(self.accepted_by_slot, earlier, strict=False))
        return SpeculationCounters(
            drafts=self.drafts - before.drafts,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            accepted_by_slot=tuple(by_slot),
        )

    def summary(self, answer_tokens: Sequence[int]) -> AcceptanceSummary:
        """Our account of the answers that these counts are of.

        The token that prefill yields is left out. Tokens that no draft accounts for were decoded without one,
        a cycle each. Where an answer ended within an accepted draft they cannot be told from what was cut,
        and tau comes out too high by at most the share of cycles without a draft.

        Args:
            answer_tokens: Length of each answer.
        """
        delivered = sum(count - 1 for count in answer_tokens)
        cycles = max(self.drafts, delivered - self.accepted)
        rates = (
            passed / reached if reached else 0.0
            for reached, passed in pairwise((self.drafts, *self.accepted_by_slot))
        )
        return AcceptanceSummary(
            cycles=cycles,
            delivered_tokens=delivered,
            accepted_draft_tokens=min(self.accepted, delivered),
            drafted_tokens=self.drafted,
            acceptance_length=delivered / cycles if cycles else 0.0,
            acceptance_rate_by_slot=tuple(rates),
        )


def _samples(metrics: str) -> Iterator[tuple[str, dict[str, str], int]]:
    """Names without the prefix, labels and values.

    Raises:
        ValueError: The text is none that Prometheus reads.
    """
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name.startswith(_PREFIX) and sample.name.endswith("_total"):
                yield sample.name.removeprefix(_PREFIX), sample.labels, int(sample.value)
