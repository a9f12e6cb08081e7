"""What a trial found: figures with their intervals, from the groups of prompts that were measured.

Shapes: G groups of prompts, C columns of sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagleray.evaluation.bootstrap import Floats, Interval, bootstrap, ratio_of_sums, speedup_of_sums
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.interleaved import GroupTimes
from eagleray.settings import Settings
from eagleray.tuning.config import Objective, Point

DEFINITIONS = {
    "tokens_per_s": (
        "Speedup over the plain decoding beside it, times the plain tokens per second of the study's regime "
        "(measured once, all workers at the same time). So drift of the machine between trials cancels. "
        "Prefill excluded."
    ),
    "tau": (
        "Tokens delivered per target verification, bonus token included, prefill excluded, pooled over "
        "cycles. Plain decoding is 1.0."
    ),
    "goodput": (
        "As tokens_per_s, counting only the tokens of groups of requests that took at most "
        "latency_bound_ms per token and request on average."
    ),
    "speedup": (
        "Tokens per second over those of plain decoding on the same prompts, in one process, in an order "
        "that rotates."
    ),
    "interval": "Bootstrap over groups of prompts, whole groups drawn again with replacement.",
    "tie": (
        "Two points whose ratio, bootstrapped over the prompts they share, has 1.0 in its interval: "
        "the difference is inside the noise."
    ),
    "infeasible": "An answer differs from plain decoding. Such a point is kept and shown, and never chosen.",
    "loss": "Slower than plain decoding, with the whole interval of the speedup below 1.0.",
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What turns ratios into tokens per second."""

    plain_tokens_per_s: float
    latency_bound_ms: float


class Outcome(Settings):
    """One measured point."""

    point: Point
    regime: str
    """Fingerprint of the regime it was measured in."""
    groups: tuple[GroupTimes, ...]
    """Each with plain decoding and this point alone."""
    figures: dict[str, Interval]
    """`speedup` and every objective."""
    wall_s: float
    """What the trial took."""
    facts: dict[str, Any] = {}
    """What else is known of it."""

    @property
    def divergence(self) -> str | None:
        """Where the answers leave plain decoding."""
        return next(
            (group.settings[0].divergence for group in self.groups if group.settings[0].divergence), None
        )

    @property
    def feasible(self) -> bool:
        """Whether all answers equal plain ones."""
        return self.divergence is None

    @property
    def loss(self) -> bool:
        """Whether it is slower than plain decoding beyond the noise."""
        return self.figures["speedup"].high < 1.0


def summarise(
    point: Point,
    groups: Sequence[GroupTimes],
    *,
    place: int = 0,
    regime: str,
    scale: Scale,
    config: BootstrapConfig,
    wall_s: float,
) -> Outcome:
    """Compute the figures of one of the settings of some groups.

    Args:
        place: Which of the groups' settings.
    """
    alone = tuple(group.model_copy(update={"settings": (group.settings[place],)}) for group in groups)
    rows = {
        name: [columns(group, name, scale) for group in alone] for name in ("tokens_per_s", "goodput", "tau")
    }
    rate = scale.plain_tokens_per_s
    return Outcome(
        point=point,
        regime=regime,
        groups=alone,
        figures={
            "speedup": bootstrap(rows["tokens_per_s"], speedup_of_sums, config),
            "tokens_per_s": bootstrap(
                rows["tokens_per_s"], lambda sums: rate * speedup_of_sums(sums), config
            ),
            "goodput": bootstrap(rows["goodput"], lambda sums: rate * speedup_of_sums(sums), config),
            "tau": bootstrap(rows["tau"], ratio_of_sums, config),
        },
        wall_s=wall_s,
    )


def columns(group: GroupTimes, objective: Objective, scale: Scale) -> list[float]:
    """The sums that an objective is a function of; for rates as `speedup_of_sums` takes them."""
    drafted = group.settings[0]
    if objective == "tau":
        return [drafted.tokens, drafted.cycles]
    counted = drafted.tokens
    if objective == "goodput" and _ms_per_token(group) > scale.latency_bound_ms:
        counted = 0
    return [group.plain.decode_s, group.plain.tokens, drafted.decode_s, counted]


def ratio(a: Outcome, b: Outcome, objective: Objective, scale: Scale, config: BootstrapConfig) -> Interval:
    """Figure of `a` over that of `b`, on the groups that both measured, drawn together.

    Both must have been measured on the same groups in the same order.
    """
    rows_GC = [
        [*columns(one, objective, scale), *columns(other, objective, scale)]
        for one, other in zip(a.groups, b.groups, strict=True)
    ]
    figure: Callable[[Floats], Floats] = ratio_of_sums if objective == "tau" else speedup_of_sums
    half = len(rows_GC[0]) // 2

    def quotient(sums_C: Floats) -> Floats:
        pair = np.stack([figure(sums_C[..., :half]), figure(sums_C[..., half:])], axis=-1)
        return ratio_of_sums(pair)

    return bootstrap(rows_GC, quotient, config)


def tied(a: Outcome, b: Outcome, objective: Objective, scale: Scale, config: BootstrapConfig) -> bool:
    """Whether the difference of two outcomes is inside the noise."""
    found = ratio(a, b, objective, scale, config)
    return found.low <= 1.0 <= found.high


def _ms_per_token(group: GroupTimes) -> float:
    """A group's requests run side by side, so each waits for the whole group."""
    drafted = group.settings[0]
    return 1e3 * drafted.decode_s * len(group.prompts) / drafted.tokens if drafted.tokens else float("inf")
