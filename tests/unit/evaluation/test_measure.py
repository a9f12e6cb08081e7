from dataclasses import replace

import pytest

from eagleray.errors import EngineError
from eagleray.evaluation.measure import (
    WARM_UP_TOKENS,
    Bench,
    measure_answers,
    measure_reference,
    measure_timing,
)
from eagleray.evaluation.records import RECORD
from eagleray.evaluation.units import AnswersUnit, DraftChoice, ReferenceUnit, TimingUnit
from eagleray.speculation.acceptance import Cycle

GOOD, BAD = DraftChoice(label="good", depth=3), DraftChoice(label="bad", depth=2)


def test_answers_come_in_batches_and_in_the_order_of_the_prompts(bench: Bench) -> None:
    record = measure_answers(AnswersUnit(family="code", draft=None), bench)
    prompts = bench.prompts["code"]
    assert [len(names) for names, *_ in bench.engine.calls] == [4, 2]  # type: ignore[attr-defined]
    assert [answer.prompt_id for answer in record.answers] == [item.prompt.prompt_id for item in prompts]
    assert record.answers[1].answer_ids == tuple(range(101, 114))
    assert record.answers[1].prompt_tokens == 3


def test_a_drafted_record_keeps_the_counts_of_every_cycle(bench: Bench) -> None:
    record = measure_answers(AnswersUnit(family="code", draft=GOOD), bench)
    assert record.answers[0].cycles == (Cycle(3, 3, 4),) * 3


def test_progress_reports_the_tokens_of_each_batch(bench: Bench) -> None:
    seen: list[int] = []
    measure_answers(AnswersUnit(family="code", draft=None), bench, seen.append)
    assert seen == [4 * 13, 2 * 13]


@pytest.mark.parametrize(("prompt_index", "order"), [(0, [None, GOOD, BAD]), (1, [GOOD, BAD, None])])
def test_settings_share_a_unit_and_rotate_with_the_prompt(
    bench: Bench, prompt_index: int, order: list[DraftChoice | None]
) -> None:
    unit = TimingUnit(family="code", prompt_index=prompt_index, drafts=(GOOD, BAD))
    record = measure_timing(unit, bench)
    calls = bench.engine.calls  # type: ignore[attr-defined]
    assert [timing.draft for timing in record.timings] == order
    assert [tokens for _, tokens, *_ in calls] == [WARM_UP_TOKENS] * 3 + [13] * 3
    assert {len(names) for names, *_ in calls} == {1}


def test_timing_leaves_prefill_out_of_seconds_and_of_tokens(bench: Bench) -> None:
    record = measure_timing(TimingUnit(family="code", prompt_index=0, drafts=(GOOD,)), bench)
    plain, drafted = record.timings
    assert (plain.tokens, plain.cycles, plain.decode_s) == (12, 12, 12.0)
    assert (drafted.tokens, drafted.cycles, drafted.decode_s) == (12, 3, 3.75)


def test_engine_and_reference_are_compared_on_the_same_prompt(bench: Bench) -> None:
    record = measure_reference(ReferenceUnit(family="code", prompt_index=1), bench)
    assert record.engine_ids == record.reference_ids == tuple(range(101, 114))
    assert record.engine_s > 0
    assert record.reference_s > 0


def test_a_reference_unit_without_a_reference_names_the_setting(bench: Bench) -> None:
    with pytest.raises(EngineError, match=r"evaluation\.hf_prompts"):
        measure_reference(ReferenceUnit(family="code", prompt_index=0), replace(bench, reference=None))


def test_records_survive_json_with_their_regime(bench: Bench) -> None:
    records = [
        measure_answers(AnswersUnit(family="code", draft=GOOD), bench),
        measure_timing(TimingUnit(family="code", prompt_index=0, drafts=(BAD,)), bench),
        measure_reference(ReferenceUnit(family="code", prompt_index=0), bench),
    ]
    for record in records:
        assert RECORD.validate_json(record.model_dump_json()) == record
        assert record.regime == bench.regime
