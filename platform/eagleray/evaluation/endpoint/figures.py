"""From blocks to figures: speed with and without a drafter under one load."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from eagleray.evaluation.bootstrap import bootstrap, speedup_of_sums
from eagleray.evaluation.endpoint.client import Served
from eagleray.evaluation.endpoint.config import EndpointConfig
from eagleray.evaluation.endpoint.load import PLAIN, Block
from eagleray.evaluation.near_ties import first_divergence
from eagleray.evaluation.plots import TIME_PARTS
from eagleray.evaluation.slices import Outcome, slice_entry, spread

PERCENTILES = (50, 95, 99)


def load_entry(label: str, blocks: Sequence[Block], config: EndpointConfig) -> dict[str, Any]:
    """Return the report entry of one drafter under one load."""
    plain, drafted = blocks_of(blocks, PLAIN), blocks_of(blocks, label)
    throughput = bootstrap(
        [
            [one.wall_s, _tokens(one), other.wall_s, _tokens(other)]
            for one, other in zip(plain, drafted, strict=True)
        ],
        speedup_of_sums,
        config.bootstrap,
    )
    entry = {
        "concurrency": blocks[0].concurrency,
        **slice_entry(outcomes(label, blocks), config.bootstrap),
        **spread("throughput", throughput, ratio=True),
        "divergences": [pair[1].prompt_id for pair in _pairs(plain, drafted) if not same_answer(*pair)],
        "plain_drift_ratio": _drift_ratio(plain),
        "plain": latency(plain),
        "drafted": latency(drafted),
    }
    if entry["plain_drift_ratio"] > config.max_drift_ratio:
        entry["verdict"] = "undecided"
        entry["verdict_reason"] = (
            f"plain speed drifted by {entry['plain_drift_ratio']:.0%} during the measurement; "
            f"{config.max_drift_ratio:.0%} is allowed"
        )
    return entry


def outcomes(label: str, blocks: Sequence[Block]) -> list[Outcome]:
    """Every prompt of a load, with and without the drafter."""
    return [
        Outcome(
            category=plain.family,
            prompt_tokens=plain.prompt_tokens,
            cycles=drafted.cycles,
            times=(plain.decode_s, plain.decode_tokens, drafted.decode_s, drafted.decode_tokens),
            same=same_answer(plain, drafted),
        )
        for plain, drafted in _pairs(blocks_of(blocks, PLAIN), blocks_of(blocks, label))
    ]


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
        "load_average": max(block.machine_load.load_average_before for block in blocks),
        "engine_ms_per_token": _engine_ms_per_token(blocks),
    }


def _engine_ms_per_token(blocks: Sequence[Block]) -> dict[str, float] | None:
    """What the engine did for a token, prefill and the token that it yields left out; None where the server
    does not tell."""
    tokens = sum(max(0, answer.tokens - 1) for block in blocks for answer in block.answers)
    seconds = {part: sum(block.engine_s.get(part, 0.0) for block in blocks) for part in TIME_PARTS}
    if not tokens or not any(seconds.values()):
        return None
    return {part: 1e3 * second / tokens for part, second in seconds.items()}


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


def blocks_of(blocks: Sequence[Block], arm: str) -> list[Block]:
    """The blocks of one server, in the order of their numbers."""
    return sorted((block for block in blocks if block.arm == arm), key=lambda block: block.number)


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


def _pairs(plain: Sequence[Block], drafted: Sequence[Block]) -> list[tuple[Served, Served]]:
    return [
        pair
        for one, other in zip(plain, drafted, strict=True)
        for pair in zip(one.answers, other.answers, strict=True)
    ]


def _tokens(block: Block) -> int:
    return sum(answer.tokens for answer in block.answers)
