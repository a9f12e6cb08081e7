"""What the records say of one drafter on one family of prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from eagleray.evaluation.bootstrap import Interval, bootstrap, ratio_of_sums, speedup_of_sums
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.definitions import DEFINITIONS
from eagleray.evaluation.near_ties import first_divergence, is_near_tie
from eagleray.evaluation.records import Answer, AnswersRecord, TimedAnswer, TimingRecord
from eagleray.evaluation.slices import Outcome
from eagleray.evaluation.units import DraftChoice
from eagleray.evaluation.verdict import judge
from eagleray.speculation.acceptance import summarize


@dataclass(frozen=True, kw_only=True)
class FamilyEvidence:
    """All records of one family."""

    plain: AnswersRecord
    drafted: tuple[AnswersRecord, ...]
    timings: tuple[TimingRecord, ...]

    def depths(self, label: str) -> list[int]:
        """Depths at which a drafter was measured, in rising order."""
        return sorted(
            r.unit.draft.depth for r in self.drafted if r.unit.draft and r.unit.draft.label == label
        )

    def answers(self, choice: DraftChoice) -> tuple[Answer, ...]:
        """Batched answers of one setting."""
        return next(record.answers for record in self.drafted if record.unit.draft == choice)

    def timed_pairs(self, choice: DraftChoice) -> list[tuple[TimedAnswer, TimedAnswer]]:
        """Plain and drafted timing of every timed prompt."""
        by_setting = [{timing.draft: timing for timing in record.timings} for record in self.timings]
        return [(timings[None], timings[choice]) for timings in by_setting]

    def outcomes(self, choice: DraftChoice) -> list[Outcome]:
        """Every prompt of the family at one setting; the first ones were timed too."""
        pairs = self.timed_pairs(choice)
        outcomes = []
        for place, (plain, drafted) in enumerate(zip(self.plain.answers, self.answers(choice), strict=True)):
            times, same = None, _same(plain, plain.answer_ids, drafted.answer_ids)
            if place < len(pairs):
                one, other = pairs[place]
                times = (one.decode_s, one.tokens, other.decode_s, other.tokens)
                same = same and _same(plain, one.answer_ids, other.answer_ids)
            outcomes.append(
                Outcome(
                    category=self.plain.unit.family,
                    prompt_tokens=plain.prompt_tokens,
                    cycles=drafted.cycles,
                    times=times,
                    same=same,
                )
            )
        return outcomes


def report_family(label: str, evidence: FamilyEvidence, config: BootstrapConfig) -> dict[str, Any]:
    """Return the report entry `drafters.<label>.families.<family>`."""
    by_depth = {
        depth: report_depth(DraftChoice(label=label, depth=depth), evidence, config)
        for depth in evidence.depths(label)
    }
    best = max(by_depth, key=lambda depth: by_depth[depth]["acceptance_length"])
    fastest = max(by_depth, key=lambda depth: by_depth[depth]["speedup_ratio"] or 0.0)
    longest, quickest = by_depth[best], by_depth[fastest]
    compared = sum(entry["compared_answers"] for entry in by_depth.values())
    exact_ratio = 1.0 - sum(_failures(entry["divergences"]) for entry in by_depth.values()) / compared
    speedup = None
    if quickest["speedup_ratio"] is not None:
        speedup = Interval(quickest["speedup_ratio"], quickest["low"], quickest["high"])
    verdict = judge(speedup, len(evidence.timings), exact_ratio, quickest["timed_acceptance_length"])
    return {
        "acceptance_length": longest["acceptance_length"],
        "acceptance_length_low": longest["acceptance_length_low"],
        "acceptance_length_high": longest["acceptance_length_high"],
        "acceptance_length_definition": DEFINITIONS["acceptance_length"],
        "best_depth": best,
        "acceptance_rate_by_slot": longest["acceptance_rate_by_slot"],
        "greedy_exact_ratio": exact_ratio,
        "speedup_ratio": quickest["speedup_ratio"],
        "speedup_low": quickest["low"],
        "speedup_high": quickest["high"],
        "speedup_depth": fastest if speedup else None,
        "tokens_per_s": quickest["tokens_per_s"],
        "plain_tokens_per_s": quickest["plain_tokens_per_s"],
        "prompts": len(evidence.plain.answers),
        "timed_prompts": len(evidence.timings),
        "verdict": verdict.word,
        "verdict_reason": verdict.reason,
        "by_depth": {str(depth): entry for depth, entry in by_depth.items()},
    }


def report_depth(choice: DraftChoice, evidence: FamilyEvidence, config: BootstrapConfig) -> dict[str, Any]:
    """Return the report entry of one depth."""
    answers = evidence.answers(choice)
    pairs = evidence.timed_pairs(choice)
    summary = summarize(cycle for answer in answers for cycle in answer.cycles)
    length = bootstrap(
        [[sum(cycle.delivered for cycle in answer.cycles), len(answer.cycles)] for answer in answers],
        ratio_of_sums,
        config,
    )
    divergences = _divergences(evidence.plain.answers, answers, pairs)
    return {
        "acceptance_length": summary.acceptance_length,
        "acceptance_length_low": length.low,
        "acceptance_length_high": length.high,
        "acceptance_rate_by_slot": list(summary.acceptance_rate_by_slot),
        "greedy_exact_ratio": 1.0 - _failures(divergences) / (len(answers) + len(pairs)),
        "compared_answers": len(answers) + len(pairs),
        "divergences": divergences,
        **_speed(pairs, config),
    }


def _divergences(
    plain: Sequence[Answer], answers: Sequence[Answer], pairs: Sequence[tuple[TimedAnswer, TimedAnswer]]
) -> list[dict[str, Any]]:
    """Every answer that differs, where it first does, and whether that is a near tie."""
    compared: list[tuple[Sequence[int], Sequence[int], str, Answer | None]] = [
        (reference.answer_ids, drafted.answer_ids, drafted.prompt_id, reference)
        for reference, drafted in zip(plain, answers, strict=True)
    ]
    # The first prompts are also those that were timed, in the same order.
    compared += [
        (one.answer_ids, other.answer_ids, f"timed prompt {place}", reference)
        for place, ((one, other), reference) in enumerate(zip_longest(pairs, plain[: len(pairs)]))
    ]
    return [
        {"answer": name, "token": token, "near_tie": is_near_tie(reference, drafted_ids)}
        for plain_ids, drafted_ids, name, reference in compared
        if (token := first_divergence(plain_ids, drafted_ids)) is not None
    ]


def _same(reference: Answer, plain_ids: Sequence[int], drafted_ids: Sequence[int]) -> bool:
    return first_divergence(plain_ids, drafted_ids) is None or is_near_tie(reference, drafted_ids)


def _failures(divergences: Sequence[dict[str, Any]]) -> int:
    return sum(not one["near_tie"] for one in divergences)


def _speed(pairs: Sequence[tuple[TimedAnswer, TimedAnswer]], config: BootstrapConfig) -> dict[str, Any]:
    if not pairs:
        speed = ("speedup_ratio", "low", "high", "tokens_per_s", "plain_tokens_per_s")
        return dict.fromkeys((*speed, "timed_acceptance_length", "draft_cost_ratio", "time_share"))
    speedup = bootstrap(
        [[plain.decode_s, plain.tokens, drafted.decode_s, drafted.tokens] for plain, drafted in pairs],
        speedup_of_sums,
        config,
    )
    plain_s, drafted_s = (sum(pair[side].decode_s for pair in pairs) for side in (0, 1))
    return {
        "speedup_ratio": speedup.value,
        "low": speedup.low,
        "high": speedup.high,
        "tokens_per_s": sum(drafted.tokens for _, drafted in pairs) / drafted_s,
        "plain_tokens_per_s": sum(plain.tokens for plain, _ in pairs) / plain_s,
        "timed_acceptance_length": sum(drafted.tokens for _, drafted in pairs)
        / sum(drafted.cycles for _, drafted in pairs),
        "draft_cost_ratio": _draft_cost(pairs),
        "time_share": {
            "draft": sum(drafted.draft_s for _, drafted in pairs) / drafted_s,
            "verify": sum(drafted.verify_s for _, drafted in pairs) / drafted_s,
            "host": sum(drafted.host_s for _, drafted in pairs) / drafted_s,
        },
    }


def _draft_cost(pairs: Sequence[tuple[TimedAnswer, TimedAnswer]]) -> float:
    """Seconds of drafting in one cycle, relative to one plain step of the target."""
    draft_s = sum(drafted.draft_s for _, drafted in pairs) / sum(drafted.cycles for _, drafted in pairs)
    step_s = sum(plain.verify_s for plain, _ in pairs) / sum(plain.cycles for plain, _ in pairs)
    return draft_s / step_s
