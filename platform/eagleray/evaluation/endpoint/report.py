"""The report of servers that run: the same report as that of an engine, from blocks of answers."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from eagleray.errors import DataError
from eagleray.evaluation.comparison import differing_fields
from eagleray.evaluation.definitions import DEFINITIONS
from eagleray.evaluation.distribution import NAME as SAMPLING
from eagleray.evaluation.distribution import distribution_check
from eagleray.evaluation.endpoint.client import Served
from eagleray.evaluation.endpoint.config import EndpointConfig
from eagleray.evaluation.endpoint.figures import blocks_of, load_entry, outcomes, same_answer
from eagleray.evaluation.endpoint.load import PLAIN, Block
from eagleray.evaluation.exactness import Check, greedy_check, not_run
from eagleray.evaluation.load_summary import summarise_load
from eagleray.evaluation.prediction import Measured
from eagleray.evaluation.report import assemble_report, drafter_section
from eagleray.evaluation.slices import Outcome, category_entries
from eagleray.settings import fingerprint
from eagleray.speculation.costs import CyclePoint

SHARED = (
    "acceptance_length",
    "acceptance_rate_by_slot",
    "interval",
    "verdict",
    "slices",
    "break_even",
    "prediction",
)
ENDPOINT_DEFINITIONS = {
    **{name: DEFINITIONS[name] for name in SHARED},
    "speedup_ratio": (
        "Tokens per second of decoding per user with the drafter over those without, from sums over prompts: "
        "from the first token of an answer to its last, as they reach the client over HTTP."
    ),
    "throughput_ratio": (
        "All tokens over the wall time of whole blocks, waiting and prefill included; drawn again by blocks."
    ),
    "first_token_s": "From sending a request to its first token.",
    "inter_token_s": "Between tokens as they reach the client; tokens of one chunk come after no wait.",
    "user_tokens_per_s": "Decode speed of single answers.",
    "plain_drift_ratio": "How much plain decode speed differs between the two halves of a measurement.",
    "greedy_exact_ratio": "Share of drafted answers that equal those of the plain server, token for token.",
}


def shared_regime(regimes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What all servers have in common, with the drafters set apart.

    Args:
        regimes: What each server tells, by arm.

    Raises:
        DataError: The servers differ in more than their drafter: they would not compare.
    """
    own = ("drafter_hash", "draft")
    common = {
        arm: {key: value for key, value in regime.items() if key not in own}
        for arm, regime in regimes.items()
    }
    for arm, regime in common.items():
        if differing := differing_fields(common[PLAIN], regime):
            raise DataError(
                f"The servers of {PLAIN} and {arm} differ in more than the drafter: {'; '.join(differing)}. "
                "A comparison needs the same target, engine and machine: serve both from one file."
            )
    drafted = {arm: regime for arm, regime in regimes.items() if arm != PLAIN}
    return {
        "server": common[PLAIN],
        "drafter_hashes": {arm: regime.get("drafter_hash") for arm, regime in drafted.items()},
        "drafts": {arm: regime.get("draft") for arm, regime in drafted.items()},
    }


def build_endpoint_report(
    blocks: Mapping[str, Sequence[Block]],
    config: EndpointConfig,
    regime: Mapping[str, Any],
    checks: Sequence[Check] = (),
    workloads: Mapping[str, Mapping[str, Any]] | None = None,
    generated_at: datetime | None = None,
) -> dict[str, Any]:
    """Put the blocks of all loads into one report.

    Args:
        blocks: By name of the load, at least one; the first one gives the figures by category.
        regime: Of the servers and of the load; see `shared_regime`.
        checks: Of the exactness gate, beside greedy identity.
        workloads: From `describe_workloads`.
        generated_at: None takes the clock.
    """
    first = next(iter(blocks))
    return assemble_report(
        drafters={label: _drafter(label, blocks, config, regime) for label in config.drafted},
        judged_by="loads",
        families_measured_at=first,
        exactness=[*(_greedy(label, blocks) for label in config.drafted), *checks],
        regime={**regime, "fingerprint": fingerprint(dict(regime))},
        definitions=ENDPOINT_DEFINITIONS,
        run={
            "workloads": _workloads(blocks[first], workloads or {}),
            # The servers are other processes, on this machine or not: what they use is no disturbance.
            "machine_load": summarise_load(
                [block.machine_load for measured in blocks.values() for block in measured],
                expected_ratio=None,
            ),
        },
        generated_at=generated_at,
    )


def _drafter(
    label: str, blocks: Mapping[str, Sequence[Block]], config: EndpointConfig, regime: Mapping[str, Any]
) -> dict[str, Any]:
    depth = ((regime.get("drafts") or {}).get(label) or {}).get("depth")
    first = outcomes(label, next(iter(blocks.values())))
    at_depth: dict[str, Any] = {"best_depth": depth, "speedup_depth": depth, "by_depth": {}}
    return drafter_section(
        label,
        "loads",
        families={
            name: {**entry, **at_depth} for name, entry in category_entries(first, config.bootstrap).items()
        },
        loads={
            name: {**load_entry(label, measured, config), "best_depth": depth, "speedup_depth": depth}
            for name, measured in blocks.items()
        },
        outcomes=first,
        measured=[
            point
            for name, measured in blocks.items()
            if measured[0].concurrency
            for point in _cycle_points(name, outcomes(label, measured), depth, config)
        ],
        bootstrap=config.bootstrap,
    )


def _cycle_points(
    load: str, measured: Sequence[Outcome], depth: int | None, config: EndpointConfig
) -> list[Measured]:
    return [
        Measured(
            at=load,
            category=category,
            point=CyclePoint(
                draft_steps=depth or 1,
                acceptance_length=entry["acceptance_length"],
                speedup=entry["speedup_ratio"],
            ),
        )
        for category, entry in category_entries(measured, config.bootstrap).items()
        if entry["acceptance_length"] and entry["speedup_ratio"]
    ]


def _greedy(label: str, blocks: Mapping[str, Sequence[Block]]) -> Check:
    compared, divergences = 0, []
    for load, measured in blocks.items():
        for plain, drafted in zip(blocks_of(measured, PLAIN), blocks_of(measured, label), strict=True):
            for one, other in zip(plain.answers, drafted.answers, strict=True):
                compared += 1
                divergences += [] if same_answer(one, other) else [f"{load}, prompt {other.prompt_id}"]
    return greedy_check(label, compared, divergences)


def sampling_checks(sampled: Mapping[str, Sequence[tuple[int, ...]]], labels: Iterable[str]) -> list[Check]:
    """Whether drafting changes the distribution of drawn answers.

    Args:
        sampled: From `draw_answers`; empty where none were drawn.
    """
    checks = []
    for label in labels:
        if not sampled:
            checks.append(not_run(SAMPLING, label, "endpoint.sampled_answers is 0"))
        elif not all(any(sampled[arm]) for arm in (PLAIN, label)):
            checks.append(not_run(SAMPLING, label, "a server does not tell the ids of its answers"))
        else:
            checks.append(distribution_check(label, sampled[PLAIN], sampled[label]))
    return checks


def plain_answers(blocks: Sequence[Block]) -> dict[str, tuple[int, ...]]:
    """What the plain server said under one load, by prompt id.

    Raises:
        DataError: It does not tell ids.
    """
    answers = [answer for block in blocks_of(blocks, PLAIN) for answer in block.answers]
    if not all(answer.answer_ids for answer in answers):
        raise DataError("The plain server does not tell the ids of its answers; a golden file holds ids.")
    return {answer.prompt_id: answer.answer_ids for answer in answers}


def _workloads(
    blocks: Sequence[Block], described: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What was asked, and how long the plain answers were."""
    families: dict[str, list[Served]] = {}
    for block in blocks_of(blocks, PLAIN):
        for answer in block.answers:
            families.setdefault(answer.family, []).append(answer)
    return {
        family: {
            **described.get(family, {}),
            "prompts": len(answers),
            "timed_prompts": len(answers),
            "prompt_tokens_median": median(answer.prompt_tokens for answer in answers),
            "answer_tokens_median": median(answer.tokens for answer in answers),
            "cut_by_length": sum(answer.finish_reason == "length" for answer in answers),
        }
        for family, answers in families.items()
    }
