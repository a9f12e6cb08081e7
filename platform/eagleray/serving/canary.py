"""Trying a new drafter on a share of the traffic: when it takes over, and when it is taken back. Pure.

Both drafters serve the same traffic at the same time, so their acceptance lengths compare. Greedy answers of
the new one are asked of the old one too: both must give the target's own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from eagleray.serving.config import CanaryConfig
from eagleray.speculation.acceptance import Cycle


@dataclass
class Tally:
    """What one drafter did."""

    cycles: int = 0
    delivered: int = 0

    @property
    def tau(self) -> float:
        """Acceptance length so far; 0 before the first cycle."""
        return self.delivered / self.cycles if self.cycles else 0.0

    def add(self, cycles: Iterable[Cycle]) -> None:
        """Count cycles."""
        for cycle in cycles:
            self.cycles += 1
            self.delivered += cycle.delivered


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What becomes of the new drafter."""

    word: Literal["wait", "promote", "roll_back"]
    reason: str


@dataclass
class Canary:
    """The state of one trial."""

    config: CanaryConfig
    live: Tally = field(default_factory=Tally)
    candidate: Tally = field(default_factory=Tally)
    compared: int = 0
    """Greedy answers that both drafters gave."""
    different: int = 0
    """Those that were not the same."""
    _owed: float = 0.0

    def takes_next(self) -> bool:
        """Whether the next request goes to the new drafter: evenly, by the configured share."""
        self._owed += self.config.share
        if self._owed < 1.0:
            return False
        self._owed -= 1.0
        return True

    def compare(self, same: bool) -> None:
        """Count an answer that both gave."""
        self.compared += 1
        self.different += not same

    def decide(self) -> Decision:
        """Judge by what was seen so far."""
        if self.different:
            return Decision(
                word="roll_back",
                reason=f"{self.different} of {self.compared} greedy answers differ from the live ones",
            )
        if min(self.candidate.cycles, self.live.cycles) < self.config.min_cycles:
            return Decision(word="wait", reason=f"fewer than {self.config.min_cycles} cycles of both")
        if self.compared < self.config.min_compared:
            return Decision(word="wait", reason=f"fewer than {self.config.min_compared} answers of both")
        seen = f"acceptance length {self.candidate.tau:.3f} against {self.live.tau:.3f} of the live one"
        if self.candidate.tau < self.config.tau_ratio * self.live.tau:
            return Decision(word="roll_back", reason=seen)
        return Decision(word="promote", reason=seen)
