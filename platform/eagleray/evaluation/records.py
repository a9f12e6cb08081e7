"""What a unit measured, as it is stored: plain JSON, with the regime it was measured in."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from eagleray.evaluation.interleaved import GroupTimes
from eagleray.evaluation.machine_load import WindowLoad
from eagleray.evaluation.regime import Regime
from eagleray.evaluation.units import (
    AnswersUnit,
    DraftChoice,
    LoadUnit,
    ReferenceUnit,
    SampledUnit,
    TimingUnit,
)
from eagleray.settings import Settings
from eagleray.speculation.acceptance import Cycle


class Rival(Settings):
    """The token that the target found second likeliest."""

    token: int
    margin: float
    """By which log probability the likeliest one led."""


class Answer(Settings):
    """One prompt's answer and how it came about."""

    prompt_id: str
    prompt_tokens: int
    answer_ids: tuple[int, ...]
    finish_reason: str
    cycles: tuple[Cycle, ...]
    rivals: tuple[Rival, ...] = ()
    """At every token, what nearly stood there; of plain answers in dtypes below float32 alone."""


class AnswersRecord(Settings):
    """Outcome of an `AnswersUnit`."""

    kind: Literal["answers"] = "answers"
    unit: AnswersUnit
    regime: Regime
    answers: tuple[Answer, ...]


class TimedAnswer(Settings):
    """One setting of a timing unit."""

    draft: DraftChoice | None
    """None is plain decoding."""
    answer_ids: tuple[int, ...]
    cycles: int
    tokens: int
    """Tokens that these cycles delivered; the first token of an answer comes from prefill and is not one."""
    draft_s: float
    verify_s: float
    host_s: float

    @property
    def decode_s(self) -> float:
        """Wall seconds without prefill."""
        return self.draft_s + self.verify_s + self.host_s


class TimingRecord(Settings):
    """Outcome of a `TimingUnit`; settings in the order they ran."""

    kind: Literal["timing"] = "timing"
    unit: TimingUnit
    regime: Regime
    timings: tuple[TimedAnswer, ...]
    machine_load: WindowLoad | None = None
    """Around all timings together; None where nobody looked."""


class ReferenceRecord(Settings):
    """Outcome of a `ReferenceUnit`. Seconds are of whole calls, prefill included."""

    kind: Literal["reference"] = "reference"
    unit: ReferenceUnit
    regime: Regime
    engine_s: float
    engine_ids: tuple[int, ...]
    reference_s: float
    reference_ids: tuple[int, ...]
    machine_load: WindowLoad | None = None
    """Around both, warm-up included; None where nobody looked."""


class LoadRecord(Settings):
    """Outcome of a `LoadUnit`; settings in the order of its drafts."""

    kind: Literal["load"] = "load"
    unit: LoadUnit
    regime: Regime
    times: GroupTimes


class SampledRecord(Settings):
    """Outcome of a `SampledUnit`: the ids of each answer."""

    kind: Literal["sampled"] = "sampled"
    unit: SampledUnit
    regime: Regime
    answers: tuple[tuple[int, ...], ...]


UnitRecord = AnswersRecord | TimingRecord | ReferenceRecord | LoadRecord | SampledRecord
RECORD: TypeAdapter[UnitRecord] = TypeAdapter(Annotated[UnitRecord, Field(discriminator="kind")])
"""Reads a record from JSON: `RECORD.validate_json(...)`. Write with `record.model_dump_json()`."""


def load_windows(records: Iterable[UnitRecord]) -> list[WindowLoad]:
    """How busy the machine was in every window of time that was measured."""
    windows: list[WindowLoad] = []
    for record in records:
        if isinstance(record, LoadRecord):
            windows += record.times.machine_load
        elif isinstance(record, TimingRecord | ReferenceRecord) and record.machine_load is not None:
            windows.append(record.machine_load)
    return windows


def plain_answers(records: Iterable[UnitRecord]) -> dict[str, tuple[int, ...]]:
    """What the target said without a drafter, by prompt id."""
    return {
        answer.prompt_id: answer.answer_ids
        for record in records
        if isinstance(record, AnswersRecord) and record.unit.draft is None
        for answer in record.answers
    }
