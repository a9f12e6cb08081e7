"""Is a replica doing its work? A process that is up and emits nothing is not healthy."""

from dataclasses import dataclass
from typing import Literal

from eagleray.serving.config import HealthConfig
from eagleray.speculation.acceptance import AcceptanceSummary


@dataclass(frozen=True, kw_only=True)
class Health:
    """A word for the orchestrator, and the reason for people."""

    status: Literal["healthy", "degraded", "stalled", "stopped"]
    """`degraded` answers correctly, and slower than it would without its drafter."""
    reason: str = ""

    @property
    def serves(self) -> bool:
        """False where only a restart helps."""
        return self.status in ("healthy", "degraded")


def judge_health(
    config: HealthConfig,
    *,
    alive: bool,
    idle_s: float,
    drafting: bool,
    recent: AcceptanceSummary | None,
) -> Health:
    """Judge by progress.

    Args:
        alive: Whether the engine's thread runs.
        idle_s: Seconds without a new token while requests are unfinished.
        recent: Acceptance over the latest cycles; None while there are too few.
    """
    if not alive:
        return Health(status="stopped", reason="the engine's thread has ended")
    if idle_s > config.stall_s:
        return Health(
            status="stalled",
            reason=f"no token for {idle_s:.0f} s while requests are unfinished; {config.stall_s:.0f} s "
            "are allowed",
        )
    if drafting and recent is not None and recent.acceptance_length < config.collapse_tau:
        return Health(
            status="degraded",
            reason=f"acceptance length {recent.acceptance_length:.3f} over the last {recent.cycles} cycles "
            f"is below {config.collapse_tau}: the drafter does not fit the target or the traffic",
        )
    return Health(status="healthy")
