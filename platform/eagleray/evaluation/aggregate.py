"""From records to one report. Pure: the same records, and the same clock reading, give the same report."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from eagleray.corpus.accounting import TruncationAccount
from eagleray.corpus.summary import DatasetSummary
from eagleray.errors import DataError
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.definitions import DEFINITIONS
from eagleray.evaluation.distribution import NAME as SAMPLING
from eagleray.evaluation.distribution import distribution_check
from eagleray.evaluation.exactness import Check, greedy_check, not_run
from eagleray.evaluation.family_report import FamilyEvidence, report_family
from eagleray.evaluation.load_report import as_group, report_load
from eagleray.evaluation.load_summary import summarise_load
from eagleray.evaluation.prediction import Measured
from eagleray.evaluation.records import (
    AnswersRecord,
    LoadRecord,
    ReferenceRecord,
    SampledRecord,
    TimingRecord,
    UnitRecord,
    load_windows,
)
from eagleray.evaluation.regime import Regime, require_one_regime
from eagleray.evaluation.report import assemble_report, drafter_section
from eagleray.evaluation.units import DraftChoice, Unit
from eagleray.settings import Settings
from eagleray.speculation.acceptance import summarize
from eagleray.speculation.costs import CyclePoint

AT_BATCH_1 = "batch 1"
"""Where speed by family is measured, as reports say it."""


class TrainingFacts(Settings):
    """How a trained drafter came to be."""

    steps: int
    tokens: int
    """Supervised answer tokens seen, every pass counted."""
    seconds: float
    """Wall time of the training stage."""
    loss_curve: tuple[tuple[int, float], ...]
    """Pairs of optimiser step and loss."""


class RunFacts(Settings):
    """What a report tells of the run beside its measurements."""

    workloads: dict[str, dict[str, Any]]
    """From `describe_workloads`."""
    training: dict[str, TrainingFacts] = {}
    """By label of the trained drafters."""
    dataset: DatasetSummary | None = None
    """The distilled dataset."""
    truncation: dict[str, TruncationAccount] = {}
    """By label of the trained drafters: what their training length costs."""
    stages: dict[str, float] = {}
    """Wall seconds by stage, in the order they ran."""
    peak_rss_bytes: int = 0
    """Largest resident memory of any process of the run."""


def build_report(
    units: Sequence[Unit],
    records: Iterable[UnitRecord],
    *,
    regime: Regime,
    bootstrap: BootstrapConfig,
    facts: RunFacts,
    checks: Sequence[Check] = (),
    generated_at: datetime | None = None,
) -> dict[str, Any]:
    """Put all records of an evaluation into one report.

    Args:
        units: Everything that was planned; a unit without a record is an error.
        checks: Of the exactness gate, beside greedy identity.
        generated_at: None takes the clock.

    Raises:
        DataError: A record is missing, or was measured in another regime.
    """
    by_name = {record.unit.name: record for record in records}
    if missing := [unit.name for unit in units if unit.name not in by_name]:
        raise DataError(
            f"{len(missing)} of {len(units)} measurements are missing, the first is {missing[0]}. "
            "Run the evaluate job of this recipe again; it measures only what is missing."
        )
    chosen = [by_name[unit.name] for unit in units]
    require_one_regime(regime, ((record.unit.name, record.regime) for record in chosen))
    evidence = _evidence_by_family(chosen)
    drafters = _drafters(evidence, [r for r in chosen if isinstance(r, LoadRecord)], bootstrap)
    return assemble_report(
        drafters=drafters,
        judged_by="families",
        families_measured_at=AT_BATCH_1,
        exactness=[*_greedy_checks(drafters), *_sampling_checks(drafters, chosen), *checks],
        regime={**regime.model_dump(mode="json"), "fingerprint": regime.fingerprint},
        definitions=DEFINITIONS,
        run={
            "engine": _engine(chosen),
            "workloads": _workloads(facts.workloads, evidence),
            "dataset": facts.dataset.model_dump(mode="json") if facts.dataset else None,
            "truncation": {label: one.model_dump(mode="json") for label, one in facts.truncation.items()},
            "training": {label: facts.training[label].model_dump(mode="json") for label in facts.training},
            "stages": facts.stages,
            "peak_rss_bytes": facts.peak_rss_bytes,
            "machine_load": summarise_load(load_windows(chosen), expected_ratio=_other_workers_ratio(regime)),
        },
        generated_at=generated_at,
    )


def _other_workers_ratio(regime: Regime) -> float | None:
    """Share of the cores that the other measuring processes use; None where a server of others answers."""
    if regime.engine == "openai":
        return None
    machine = regime.machine
    return min(1.0, (regime.workers - 1) * machine.threads / machine.cores)


def _evidence_by_family(records: Sequence[UnitRecord]) -> dict[str, FamilyEvidence]:
    answers = [record for record in records if isinstance(record, AnswersRecord)]
    return {
        plain.unit.family: FamilyEvidence(
            plain=plain,
            drafted=tuple(r for r in answers if r.unit.draft and r.unit.family == plain.unit.family),
            timings=tuple(
                r for r in records if isinstance(r, TimingRecord) and r.unit.family == plain.unit.family
            ),
        )
        for plain in answers
        if plain.unit.draft is None
    }


def _drafters(
    evidence: Mapping[str, FamilyEvidence], loads: Sequence[LoadRecord], config: BootstrapConfig
) -> dict[str, Any]:
    choices = dict.fromkeys(
        record.unit.draft for family in evidence.values() for record in family.drafted if record.unit.draft
    )
    drafters = {}
    for label in dict.fromkeys(choice.label for choice in choices):
        families = {family: report_family(label, found, config) for family, found in evidence.items()}
        choice = _fastest([choice for choice in choices if choice.label == label], evidence)
        drafters[label] = drafter_section(
            label,
            "families",
            families=families,
            loads=_loads(label, evidence, loads, config),
            outcomes=[outcome for found in evidence.values() for outcome in found.outcomes(choice)],
            measured=_cycle_points(families),
            bootstrap=config,
        )
    return drafters


def _fastest(choices: Sequence[DraftChoice], evidence: Mapping[str, FamilyEvidence]) -> DraftChoice:
    """The depth to serve all families at; the one that accepts most where speed was not measured."""

    def merit(choice: DraftChoice) -> float:
        pairs = [pair for found in evidence.values() for pair in found.timed_pairs(choice)]
        if pairs:
            return sum(drafted.tokens for _, drafted in pairs) / sum(drafted.decode_s for _, drafted in pairs)
        answers = [answer for found in evidence.values() for answer in found.answers(choice)]
        return summarize(cycle for answer in answers for cycle in answer.cycles).acceptance_length

    return max(choices, key=merit)


def _loads(
    label: str, evidence: Mapping[str, FamilyEvidence], loads: Sequence[LoadRecord], config: BootstrapConfig
) -> dict[str, Any]:
    """Entries by concurrency, batch 1 from the timings of all families; none if no other was measured."""
    if not loads:
        return {}
    place, choice = next(
        (place, draft) for place, draft in enumerate(loads[0].unit.drafts) if draft.label == label
    )
    alone = [
        as_group(timing.unit.name, *pair)
        for found in evidence.values()
        for timing, pair in zip(found.timings, found.timed_pairs(choice), strict=True)
    ]
    entries = {"batch-1": report_load(1, choice.depth, alone, 0, config)} if alone else {}
    for concurrency in dict.fromkeys(record.unit.concurrency for record in loads):
        groups = [record.times for record in loads if record.unit.concurrency == concurrency]
        entries[f"batch-{concurrency}"] = report_load(concurrency, choice.depth, groups, place, config)
    return entries


def _cycle_points(families: Mapping[str, Mapping[str, Any]]) -> list[Measured]:
    return [
        Measured(
            at=AT_BATCH_1,
            category=family,
            point=CyclePoint(
                draft_steps=int(depth),
                acceptance_length=entry["timed_acceptance_length"],
                speedup=entry["speedup_ratio"],
            ),
        )
        for family, figures in families.items()
        for depth, entry in figures["by_depth"].items()
        if entry["speedup_ratio"]
    ]


def _greedy_checks(drafters: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    checks = []
    for label, drafter in drafters.items():
        depths = [
            (family, entry)
            for family, figures in drafter["families"].items()
            for entry in figures["by_depth"].values()
        ]
        divergences = [
            f"{family}, {one['answer']}, token {one['token']}"
            for family, entry in depths
            for one in entry["divergences"]
            if not one["near_tie"]
        ]
        compared = sum(entry["compared_answers"] for _, entry in depths)
        near_ties = sum(one["near_tie"] for _, entry in depths for one in entry["divergences"])
        checks.append(greedy_check(label, compared, divergences, near_ties))
    return checks


def _sampling_checks(drafters: Iterable[str], records: Sequence[UnitRecord]) -> list[Check]:
    answers = {
        record.unit.draft and record.unit.draft.label: record.answers
        for record in records
        if isinstance(record, SampledRecord)
    }
    if not answers:
        return [not_run(SAMPLING, label, "evaluation.sampled_answers is 0") for label in drafters]
    return [distribution_check(label, answers[None], answers[label]) for label in drafters]


def _engine(records: Sequence[UnitRecord]) -> dict[str, Any]:
    plain = [
        timing
        for record in records
        if isinstance(record, TimingRecord)
        for timing in record.timings
        if timing.draft is None
    ]
    references = [record for record in records if isinstance(record, ReferenceRecord)]
    ratios = [(len(r.engine_ids) / r.engine_s) / (len(r.reference_ids) / r.reference_s) for r in references]
    same_ids = sum(r.engine_ids == r.reference_ids for r in references)
    return {
        "plain_tokens_per_s": sum(t.tokens for t in plain) / sum(t.decode_s for t in plain)
        if plain
        else None,
        "plain_vs_hf_ratio": median(ratios) if ratios else None,
        "plain_vs_hf_ratio_by_prompt": ratios,
        "hf_same_ids_ratio": same_ids / len(references) if references else None,
    }


def _workloads(
    described: Mapping[str, Mapping[str, Any]], evidence: Mapping[str, FamilyEvidence]
) -> dict[str, dict[str, Any]]:
    return {
        family: {
            **described.get(family, {}),
            "prompts": len(found.plain.answers),
            "timed_prompts": len(found.timings),
            "prompt_tokens_median": median(answer.prompt_tokens for answer in found.plain.answers),
            "answer_tokens_median": median(len(answer.answer_ids) for answer in found.plain.answers),
            "cut_by_length": sum(answer.finish_reason == "length" for answer in found.plain.answers),
        }
        for family, found in evidence.items()
    }
