"""From blocks to figures: speed with and without a drafter under each load, and where drafting pays."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from eagleray.evaluation.bootstrap import Interval, bootstrap, ratio_of_sums, speedup_of_sums
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.endpoint.client import Served
from eagleray.evaluation.endpoint.config import EndpointConfig
from eagleray.evaluation.endpoint.load import PLAIN, Block
from eagleray.evaluation.family_report import first_divergence
from eagleray.evaluation.verdict import Verdict, judge
from eagleray.speculation.acceptance import summarize

PERCENTILES = (50, 95, 99)
NOISE_RATIO = 1.05
"""A speedup is impossible beyond the acceptance length; by this factor, it is noise of the clock."""

Pair = tuple[Served, Served]


def load_entry(label: str, blocks: Sequence[Block], config: EndpointConfig) -> dict[str, Any]:
    """Return the report entry of one drafter under one load."""
    plain, drafted = _blocks(blocks, PLAIN), _blocks(blocks, label)
    pairs = _pairs(plain, drafted)
    speedup = _speedup(pairs, config.bootstrap)
    throughput = bootstrap(
        [
            [one.wall_s, _tokens(one), other.wall_s, _tokens(other)]
            for one, other in zip(plain, drafted, strict=True)
        ],
        speedup_of_sums,
        config.bootstrap,
    )
    divergences = [pair[1].prompt_id for pair in pairs if not same_answer(*pair)]
    exact_ratio = 1.0 - len(divergences) / len(pairs)
    tau = _acceptance_length(drafted, config.bootstrap)
    drift = _drift_ratio(plain)
    verdict = _verdict(speedup, len(pairs), exact_ratio, drift, config)
    families = {family: _family(family, pairs, config.bootstrap) for family in _families(pairs)}
    return {
        "verdict": verdict.word,
        "verdict_reason": verdict.reason,
        **_spread("speedup", speedup, ratio=True),
        **_spread("throughput", throughput, ratio=True),
        **_spread("acceptance_length", tau),
        "greedy_exact_ratio": exact_ratio,
        "divergences": divergences,
        "prompts": len(pairs),
        "families": families,
        "worst_family": min(families, key=lambda name: families[name]["speedup_ratio"]),
        "plain_drift_ratio": drift,
        "anomalies": anomalies(speedup, tau),
        "plain": latency(plain),
        "drafted": latency(drafted),
    }


def same_answer(plain: Served, drafted: Served) -> bool:
    """Whether both servers said the same: by ids where both tell them, by text elsewhere."""
    if plain.answer_ids and drafted.answer_ids:
        return first_divergence(plain.answer_ids, drafted.answer_ids) is None
    return (plain.text, plain.tokens) == (drafted.text, drafted.tokens)


def latency(blocks: Sequence[Block]) -> dict[str, Any]:
    """What users wait for, and what the machine gives in all."""
    answers = [answer for block in blocks for answer in block.answers]
    per_user = [answer.decode_tokens / answer.decode_s for answer in answers if answer.decode_s > 0]
    return {
        "tokens_per_s": sum(map(_tokens, blocks)) / sum(block.wall_s for block in blocks),
        "requests_per_s": len(answers) / sum(block.wall_s for block in blocks),
        "first_token_s": percentiles(answer.first_token_s for answer in answers),
        "inter_token_s": percentiles(token_gaps_s(answers)),
        "user_tokens_per_s": percentiles(per_user),
        "load_average": max(block.load_average for block in blocks),
    }


def token_gaps_s(answers: Iterable[Served]) -> list[float]:
    """Seconds between tokens as they reach the user: tokens of one chunk come together, so all but one of
    them come after no wait at all."""
    gaps: list[float] = []
    for answer in answers:
        gaps += answer.gaps_s
        gaps += [0.0] * max(0, answer.decode_tokens - len(answer.gaps_s))
    return gaps


def percentiles(values: Iterable[float]) -> dict[str, float] | None:
    """Mean and percentiles; None of nothing."""
    known = list(values)
    if not known:
        return None
    found = np.percentile(known, PERCENTILES)
    return {
        "mean": float(np.mean(known)),
        **{f"p{p}": float(value) for p, value in zip(PERCENTILES, found, strict=True)},
    }


def break_even(speedups: Mapping[int, float]) -> dict[str, Any]:
    """The concurrency at which drafting stops paying, between the two measured ones that hold it.

    Interpolated over the logarithm of the concurrency, along which batches grow.

    Args:
        speedups: By concurrency.
    """
    points = sorted(speedups.items())
    for (low, above), (high, below) in pairwise(points):
        if above > 1.0 >= below:
            share = (above - 1.0) / (above - below)
            crossing = 2 ** (math.log2(low) + share * (math.log2(high) - math.log2(low)))
            return {
                "concurrency": crossing,
                "reason": f"the speedup falls through 1.0 between {low} and {high}",
            }
    pays = [speedup > 1.0 for speedup in speedups.values()]
    if all(pays):
        reason = "drafting is faster at every measured concurrency"
    elif not any(pays):
        reason = "drafting is faster at no measured concurrency"
    else:
        reason = "the speedup only rises through 1.0"
    return {"concurrency": None, "reason": reason}


def anomalies(speedup: Interval, tau: Interval | None) -> list[str]:
    """What cannot be: a cycle delivers tau tokens and takes no less than a plain step does."""
    if tau is None or speedup.low <= tau.value * NOISE_RATIO:
        return []
    return [
        f"a speedup of {speedup.value:.2f} exceeds the acceptance length {tau.value:.2f}, which is "
        "impossible: the plain server is not the same, or not alone"
    ]


def _verdict(
    speedup: Interval, prompts: int, exact_ratio: float, drift: float, config: EndpointConfig
) -> Verdict:
    if drift > config.max_drift_ratio:
        return Verdict(
            "undecided",
            f"plain speed drifted by {drift:.0%} during the measurement; {config.max_drift_ratio:.0%} is "
            "allowed",
        )
    return judge(speedup, prompts, exact_ratio)


def _drift_ratio(plain: Sequence[Block]) -> float:
    """How much plain speed differs between the first and the second half; 0 with a single block."""
    half = len(plain) // 2
    if half == 0:
        return 0.0
    first, second = (_user_rate(part) for part in (plain[:half], plain[-half:]))
    return abs(second / first - 1.0) if first else 0.0


def _user_rate(blocks: Sequence[Block]) -> float:
    answers = [answer for block in blocks for answer in block.answers]
    seconds = sum(answer.decode_s for answer in answers)
    return sum(answer.decode_tokens for answer in answers) / seconds if seconds else 0.0


def _family(family: str, pairs: Sequence[Pair], config: BootstrapConfig) -> dict[str, Any]:
    chosen = [pair for pair in pairs if pair[0].family == family]
    speedup = _speedup(chosen, config)
    exact = sum(same_answer(*pair) for pair in chosen) / len(chosen)
    verdict = judge(speedup, len(chosen), exact)
    summary = summarize(cycle for _, drafted in chosen for cycle in drafted.cycles)
    return {
        **_spread("speedup", speedup, ratio=True),
        "acceptance_length": summary.acceptance_length or None,
        "acceptance_rate_by_slot": list(summary.acceptance_rate_by_slot),
        "greedy_exact_ratio": exact,
        "prompts": len(chosen),
        "verdict": verdict.word,
        "verdict_reason": verdict.reason,
    }


def _speedup(pairs: Sequence[Pair], config: BootstrapConfig) -> Interval:
    rows = [
        [plain.decode_s, plain.decode_tokens, drafted.decode_s, drafted.decode_tokens]
        for plain, drafted in pairs
    ]
    return bootstrap(rows, speedup_of_sums, config)


def _acceptance_length(blocks: Sequence[Block], config: BootstrapConfig) -> Interval | None:
    rows = [
        [sum(cycle.delivered for cycle in answer.cycles), len(answer.cycles)]
        for block in blocks
        for answer in block.answers
        if answer.cycles
    ]
    return bootstrap(rows, ratio_of_sums, config) if rows else None


def _pairs(plain: Sequence[Block], drafted: Sequence[Block]) -> list[Pair]:
    return [
        pair
        for one, other in zip(plain, drafted, strict=True)
        for pair in zip(one.answers, other.answers, strict=True)
    ]


def _blocks(blocks: Sequence[Block], arm: str) -> list[Block]:
    return sorted((block for block in blocks if block.arm == arm), key=lambda block: block.number)


def _families(pairs: Sequence[Pair]) -> list[str]:
    return list(dict.fromkeys(plain.family for plain, _ in pairs))


def _tokens(block: Block) -> int:
    return sum(answer.tokens for answer in block.answers)


def _spread(name: str, interval: Interval | None, *, ratio: bool = False) -> dict[str, float | None]:
    value = f"{name}_ratio" if ratio else name
    if interval is None:
        return {value: None, f"{name}_low": None, f"{name}_high": None}
    return {value: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
