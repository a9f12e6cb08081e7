"""What the detector says of a job."""

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "healthy",
    "straggler",
    "telemetry_lost",
    "data_starved",
    "collective_hang",
    "oom_hang",
    "dead_rank",
]
"""In the order of weight: of two that hold at once, the later is told."""

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A judgement of the whole job at one time."""

    kind: Kind
    time_s: float
    """Of the records that it rests on."""
    culprit: int | None
    """The rank that the others suffer from; None: no single one can be told."""
    confidence: float
    """0..1: how much the evidence leaves to doubt. Not a measured probability."""
    ends_attempt: bool
    """True: waiting longer is worth less than a restart. False: a warning."""
    stalled_s: float
    """Seconds without a sign of life from any rank; 0 while the job moves."""
    evidence: tuple[str, ...]
    """Sentences with the numbers seen."""
