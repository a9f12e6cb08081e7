"""What was served: totals for counters, and the latest cycles for the acceptance length of now."""

from collections import deque
from typing import TYPE_CHECKING, Any

from eagleray.speculation.acceptance import DEFINITION, AcceptanceSummary, Cycle, summarize

if TYPE_CHECKING:
    from eagleray.serving.answers import Answers


def speculation_facts(cycles: tuple[Cycle, ...]) -> dict[str, Any]:
    """What a client is told of the drafting behind its answer."""
    summary = summarize(cycles)
    return {
        "cycles": summary.cycles,
        "drafted_tokens": summary.drafted_tokens,
        "accepted_tokens": summary.accepted_draft_tokens,
        "delivered_tokens": summary.delivered_tokens,
        "acceptance_length": summary.acceptance_length,
        "acceptance_rate_by_slot": list(summary.acceptance_rate_by_slot),
    }


def speculation_headers(cycles: tuple[Cycle, ...]) -> dict[str, str]:
    """The same in headers, for clients whose library hides what it does not know of a body."""
    facts = speculation_facts(cycles)
    names = ("cycles", "drafted_tokens", "accepted_tokens", "acceptance_length")
    headers = {f"x-speculation-{name.replace('_', '-')}": f"{facts[name]:.6g}" for name in names}
    rates = ",".join(f"{rate:.4g}" for rate in facts["acceptance_rate_by_slot"])
    return {**headers, "x-speculation-acceptance-rate-by-slot": rates}


def cycle_counts(cycles: tuple[Cycle, ...]) -> dict[str, list[int]]:
    """Every cycle's counts, as columns."""
    return {
        "drafted": [cycle.drafted for cycle in cycles],
        "accepted": [cycle.accepted for cycle in cycles],
        "delivered": [cycle.delivered for cycle in cycles],
    }


class Account:
    """Totals since the start, and a window of the latest cycles."""

    def __init__(self, window_cycles: int):
        self.requests = 0
        self.prompt_tokens = 0
        self.reused_prompt_tokens = 0
        self.completion_tokens = 0
        self.cycles = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.delivered_tokens = 0
        self._latest: deque[Cycle] = deque(maxlen=window_cycles)

    @property
    def latest(self) -> AcceptanceSummary:
        """Acceptance over as much of the window as there is."""
        return summarize(list(self._latest))

    @property
    def recent(self) -> AcceptanceSummary | None:
        """Acceptance over the window; None until it is full."""
        return self.latest if len(self._latest) == self._latest.maxlen else None

    def add(self, answers: "Answers") -> None:
        """Count what was delivered of one request, whole or not."""
        self.requests += 1
        self.prompt_tokens += answers.ask.prompt_tokens
        self.reused_prompt_tokens += answers.reused_prompt_tokens
        self.completion_tokens += answers.completion_tokens
        self._latest.extend(answers.cycles)
        for cycle in answers.cycles:
            self.cycles += 1
            self.drafted_tokens += cycle.drafted
            self.accepted_tokens += cycle.accepted
            self.delivered_tokens += cycle.delivered

    def facts(self) -> dict[str, Any]:
        """Totals and the acceptance of now, for `/v1/speculation`."""
        latest = self.latest
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "reused_prompt_tokens": self.reused_prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cycles": self.cycles,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "acceptance_length": self.delivered_tokens / self.cycles if self.cycles else None,
            "acceptance_length_definition": DEFINITION,
            "latest": {
                "cycles": latest.cycles,
                "acceptance_length": latest.acceptance_length if latest.cycles else None,
                "acceptance_rate_by_slot": list(latest.acceptance_rate_by_slot),
            },
        }
