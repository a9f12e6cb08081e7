"""From records to one report. Pure: the same records, and the same clock reading, give the same report."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from eagleray.corpus.accounting import TruncationAccount
from eagleray.corpus.summary import DatasetSummary
from eagleray.errors import DataError
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.definitions import DEFINITIONS
from eagleray.evaluation.family_report import FamilyEvidence, report_family
from eagleray.evaluation.records import AnswersRecord, ReferenceRecord, TimingRecord, UnitRecord
from eagleray.evaluation.regime import Regime, require_one_regime
from eagleray.evaluation.units import Unit
from eagleray.evaluation.verdict import summarise
from eagleray.settings import Settings


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
    generated_at: datetime | None = None,
) -> dict[str, Any]:
    """Put all records of an evaluation into one report.

    Args:
        units: Everything that was planned; a unit without a record is an error.
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
    return {
        "generated_at": (generated_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        "drafters": _drafters(evidence, bootstrap),
        "engine": _engine(chosen),
        "workloads": _workloads(facts.workloads, evidence),
        "dataset": facts.dataset.model_dump(mode="json") if facts.dataset else None,
        "truncation": {label: one.model_dump(mode="json") for label, one in facts.truncation.items()},
        "training": {label: facts.training[label].model_dump(mode="json") for label in facts.training},
        "stages": facts.stages,
        "peak_rss_bytes": facts.peak_rss_bytes,
        "regime": {**regime.model_dump(mode="json"), "fingerprint": regime.fingerprint},
        "definitions": DEFINITIONS,
    }


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


def _drafters(evidence: Mapping[str, FamilyEvidence], config: BootstrapConfig) -> dict[str, Any]:
    labels = dict.fromkeys(
        record.unit.draft.label
        for family in evidence.values()
        for record in family.drafted
        if record.unit.draft
    )
    drafters = {}
    for label in labels:
        families = {family: report_family(label, found, config) for family, found in evidence.items()}
        drafters[label] = {"summary": summarise(label, families), "families": families}
    return drafters


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
