"""What the records say of one drafter at one concurrency, in the engine's own process."""

from collections.abc import Sequence
from typing import Any

from eagleray.evaluation.bootstrap import bootstrap, ratio_of_sums, speedup_of_sums
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.interleaved import GroupTimes, SettingTime
from eagleray.evaluation.records import TimedAnswer
from eagleray.evaluation.slices import spread
from eagleray.evaluation.verdict import judge


def report_load(
    concurrency: int, depth: int, groups: Sequence[GroupTimes], place: int, config: BootstrapConfig
) -> dict[str, Any]:
    """Return the report entry `drafters.<label>.loads.batch-<concurrency>`.

    Args:
        groups: Prompts that were decoded together; what is drawn again for the intervals.
        place: Of the drafter among the settings of a group.
    """
    pairs = [(group.plain, group.settings[place]) for group in groups]
    speedup = bootstrap(
        [[plain.decode_s, plain.tokens, drafted.decode_s, drafted.tokens] for plain, drafted in pairs],
        speedup_of_sums,
        config,
    )
    tau = bootstrap([[drafted.tokens, drafted.cycles] for _, drafted in pairs], ratio_of_sums, config)
    exact = sum(drafted.divergence is None for _, drafted in pairs) / len(pairs)
    verdict = judge(speedup, len(pairs), exact, tau.value, drawn="groups of prompts")
    return {
        "concurrency": concurrency,
        "best_depth": depth,
        "speedup_depth": depth,
        "verdict": verdict.word,
        "verdict_reason": verdict.reason,
        **spread("speedup", speedup, ratio=True),
        # Nobody waits here, so all users together gain what one does.
        **spread("throughput", speedup, ratio=True),
        **spread("acceptance_length", tau),
        "greedy_exact_ratio": exact,
        "prompts": sum(len(group.prompts) for group in groups),
        "timed_prompts": sum(len(group.prompts) for group in groups),
        "plain": _rates([plain for plain, _ in pairs], concurrency),
        "drafted": _rates([drafted for _, drafted in pairs], concurrency),
    }


def as_group(name: str, plain: TimedAnswer, drafted: TimedAnswer) -> GroupTimes:
    """One timed prompt as a group of its own."""
    differs = plain.answer_ids != drafted.answer_ids
    return GroupTimes(
        prompts=(name,), plain=_time(plain, None), settings=(_time(drafted, name if differs else None),)
    )


def _time(answer: TimedAnswer, divergence: str | None) -> SettingTime:
    return SettingTime(
        tokens=answer.tokens,
        cycles=answer.cycles,
        draft_s=answer.draft_s,
        verify_s=answer.verify_s,
        host_s=answer.host_s,
        divergence=divergence,
    )


def _rates(times: Sequence[SettingTime], concurrency: int) -> dict[str, Any]:
    tokens = sum(time.tokens for time in times)
    tokens_per_s = tokens / sum(time.decode_s for time in times)
    return {
        "tokens_per_s": tokens_per_s,
        "user_tokens_per_s": {"p50": tokens_per_s / concurrency},
        "engine_ms_per_token": {
            "draft": 1e3 * sum(time.draft_s for time in times) / tokens,
            "verify": 1e3 * sum(time.verify_s for time in times) / tokens,
            "host": 1e3 * sum(time.host_s for time in times) / tokens,
        },
    }
