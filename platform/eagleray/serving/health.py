"""Is a replica doing its work? A process that is up and emits nothing is not healthy."""

from dataclasses import dataclass
from typing import Literal

from eagleray.serving.config import DraftConfig, HealthConfig
from eagleray.speculation.acceptance import AcceptanceSummary


@dataclass(frozen=True, kw_only=True)
class Health:
    """A word for the orchestrator, and the reason for people."""

    status: Literal["healthy", "degraded", "drifted", "stalled", "stopped"]
    """`degraded` answers correctly, and slower than it would without its drafter; `drifted` answers slower
    than the drafter was promoted for."""
    reason: str = ""

    @property
    def serves(self) -> bool:
        """False where only a restart helps."""
        return self.status not in ("stalled", "stopped")


def judge_health(
    config: HealthConfig,
    *,
    alive: bool,
    fault: str | None,
    idle_s: float,
    draft: DraftConfig | None,
    recent: AcceptanceSummary | None,
) -> Health:
    """Judge by progress.

    Args:
        alive: Whether the engine's thread runs.
        fault: Why what answers runs no more, where that is a process of its own; None while it does.
        idle_s: Seconds without a new token while requests are unfinished.
        recent: Acceptance over the latest cycles; None while there are too few.
    """
    if not alive:
        return Health(status="stopped", reason="the engine's thread has ended")
    if fault is not None:
        return Health(status="stopped", reason=fault)
    if idle_s > config.stall_s:
        return Health(
            status="stalled",
            reason=f"no token for {idle_s:.0f} s while requests are unfinished; {config.stall_s:.0f} s "
            "are allowed",
        )
    if draft is None or recent is None:
        return Health(status="healthy")
    seen = f"acceptance length {recent.acceptance_length:.3f} over the last {recent.cycles} cycles"
    if recent.acceptance_length < config.collapse_tau:
        return Health(
            status="degraded",
            reason=f"{seen} is below {config.collapse_tau}: the drafter fits neither target nor traffic",
        )
    if draft.expected_tau and recent.acceptance_length < config.drift_ratio * draft.expected_tau:
        return Health(
            status="drifted",
            reason=f"{seen} is below {config.drift_ratio:.0%} of the expected {draft.expected_tau}: distil "
            "prompts of this traffic and train on",
        )
    return Health(status="healthy")
