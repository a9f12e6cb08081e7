"""The pretend engine verifies in 1 s and drafts in 0.25 s per cycle; answers have 12 tokens after prefill.

Plain: 12 cycles, 12 s. `good` at depth 3 commits 4 per cycle: 3 cycles, 3.75 s. At depth 2 it commits
3: 4 cycles, 5 s. `bad` commits 1 per cycle: 12 cycles, 15 s.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from eagleray.errors import DataError
from eagleray.evaluation.aggregate import RunFacts, build_report
from eagleray.evaluation.family_report import FamilyEvidence, report_depth, report_family
from eagleray.evaluation.measure import Bench, run_unit
from eagleray.evaluation.profile import measured_facts
from eagleray.evaluation.records import AnswersRecord, Rival, TimingRecord
from eagleray.evaluation.units import AnswersUnit, DraftChoice, TimingUnit, plan_units
from eagleray.speculation.acceptance import Cycle

GOOD = DraftChoice(label="good", depth=3)


def _evidence(bench: Bench, timed_prompts: int) -> FamilyEvidence:
    def answers(draft: DraftChoice | None) -> AnswersRecord:
        record = run_unit(AnswersUnit(family="code", draft=draft), bench)
        assert isinstance(record, AnswersRecord)
        return record

    timings = [
        run_unit(TimingUnit(family="code", prompt_index=index, drafts=(GOOD,)), bench)
        for index in range(timed_prompts)
    ]
    return FamilyEvidence(
        plain=answers(None),
        drafted=(answers(GOOD),),
        timings=tuple(record for record in timings if isinstance(record, TimingRecord)),
    )


def test_a_right_drafter_wins_with_hand_computed_figures(report: dict[str, Any]) -> None:
    entry = report["drafters"]["good"]["families"]["code"]
    assert entry["acceptance_length"] == 4.0
    assert entry["best_depth"] == entry["speedup_depth"] == 3
    assert entry["acceptance_rate_by_slot"] == [1.0, 1.0, 1.0]
    assert entry["speedup_ratio"] == pytest.approx(12 / 3.75)
    assert entry["speedup_low"] == entry["speedup_high"] == pytest.approx(12 / 3.75)
    assert entry["tokens_per_s"] == pytest.approx(12 / 3.75)
    assert entry["plain_tokens_per_s"] == 1.0
    assert entry["by_depth"]["2"]["speedup_ratio"] == pytest.approx(12 / 5)
    assert entry["by_depth"]["2"]["acceptance_length"] == 3.0
    assert entry["by_depth"]["3"]["time_share"] == pytest.approx({"draft": 0.2, "verify": 0.8, "host": 0.0})
    assert entry["by_depth"]["3"]["draft_cost_ratio"] == pytest.approx(0.25)
    assert (entry["greedy_exact_ratio"], entry["verdict"], entry["prompts"]) == (1.0, "win", 6)


def test_loads_hold_every_drafter_at_its_deepest_and_say_where_drafting_stops_to_pay(
    report: dict[str, Any],
) -> None:
    good, bad = (report["drafters"][label] for label in ("good", "bad"))
    assert {name: entry["prompts"] for name, entry in good["loads"].items()} == {"batch-1": 10, "batch-2": 10}
    for entry in good["loads"].values():
        assert (entry["speedup_depth"], entry["verdict"]) == (3, "win")
        assert entry["speedup_ratio"] == entry["throughput_ratio"] == pytest.approx(12 / 3.75)
        assert entry["acceptance_length"] == 4.0
        # 3.75 s for 12 tokens, a fifth of it drafting.
        assert entry["drafted"]["engine_ms_per_token"] == pytest.approx(
            {"draft": 62.5, "verify": 250.0, "host": 0.0}
        )
    # Two answers together take the pretend engine twice as long: each user gets half.
    plain = good["loads"]["batch-2"]["plain"]
    assert (plain["tokens_per_s"], plain["user_tokens_per_s"]["p50"]) == pytest.approx((1.0, 0.5))
    assert good["break_even"]["concurrency"] is bad["break_even"]["concurrency"] is None
    assert "at no measured" in bad["break_even"]["reason"]


def test_the_cost_model_predicts_each_family_from_the_other(report: dict[str, Any]) -> None:
    prediction = report["drafters"]["good"]["prediction"]
    # A cycle takes 1.25 plain steps at either depth.
    assert prediction["costs"]["batch 1"] == pytest.approx({"fixed_steps": 1.25, "steps_per_draft_token": 0})
    assert len(prediction["points"]) == 4
    for point in prediction["points"]:
        assert point["predicted_speedup"] == pytest.approx(point["measured_speedup"])


def test_a_wrong_drafter_loses_although_its_answers_are_right(report: dict[str, Any]) -> None:
    entry = report["drafters"]["bad"]["families"]["arithmetic"]
    assert entry["acceptance_length"] == 1.0
    assert entry["acceptance_rate_by_slot"] == [0.0, 0.0]
    assert entry["speedup_ratio"] == pytest.approx(12 / 15)
    assert (entry["greedy_exact_ratio"], entry["verdict"]) == (1.0, "loss")


def test_the_profile_of_a_drafter_learns_what_was_measured(report: dict[str, Any]) -> None:
    facts = measured_facts(report, "good")
    assert facts["families"]["code"]["2"] == pytest.approx(
        {"acceptance_length": 3.0, "draft_cost_ratio": 0.25, "speedup_ratio": 12 / 5}
    )
    assert facts["regime"] == report["regime"]
    assert set(facts["definitions"]) == set(facts["families"]["code"]["2"])


def test_the_report_carries_engine_workloads_and_the_facts_of_the_run(report: dict[str, Any]) -> None:
    assert report["generated_at"] == "2030-01-02T00:00:00+00:00"
    assert report["engine"]["plain_tokens_per_s"] == 1.0
    assert report["engine"]["hf_same_ids_ratio"] == 1.0
    assert len(report["engine"]["plain_vs_hf_ratio_by_prompt"]) == 3
    assert report["workloads"]["code"] == {
        "prompts": 6,
        "source": "EagleRay templates: one small Python function or class",
        "licence": "CC0-1.0",
        "in_training_families": True,
        "timed_prompts": 5,
        "prompt_tokens_median": 3,
        "answer_tokens_median": 13,
        "cut_by_length": 6,
    }
    assert report["workloads"]["arithmetic"]["in_training_families"] is False
    assert report["training"]["good"]["steps"] == 2
    assert report["peak_rss_bytes"] == 2**30
    assert list(report["stages"]) == ["distil", "train"]


def test_tau_is_pooled_over_cycles_and_not_averaged_over_prompts(bench: Bench) -> None:
    evidence = _evidence(bench, 0)
    short, long = evidence.drafted[0].answers[:2]
    # 4 tokens in 1 cycle and 12 in 12: pooled 16 / 13, averaged over prompts 2.5.
    short = short.model_copy(update={"cycles": short.cycles[:1]})
    one = Cycle(drafted=3, accepted=0, delivered=1)
    long = long.model_copy(update={"cycles": (one,) * 12})
    drafted = evidence.drafted[0].model_copy(update={"answers": (short, long)})
    plain = evidence.plain.model_copy(update={"answers": evidence.plain.answers[:2]})
    entry = report_depth(GOOD, replace(evidence, plain=plain, drafted=(drafted,)), bench.config.bootstrap)
    assert entry["acceptance_length"] == pytest.approx(16 / 13)
    assert entry["acceptance_rate_by_slot"] == [pytest.approx(1 / 13), 1.0, 1.0]


def test_one_diverging_answer_is_counted_located_and_forbids_a_win(bench: Bench) -> None:
    evidence = _evidence(bench, 5)
    answers = list(evidence.drafted[0].answers)
    wrong = (*answers[2].answer_ids[:4], 7, *answers[2].answer_ids[5:])
    answers[2] = answers[2].model_copy(update={"answer_ids": wrong})
    drafted = evidence.drafted[0].model_copy(update={"answers": tuple(answers)})
    entry = report_family("good", replace(evidence, drafted=(drafted,)), bench.config.bootstrap)
    # 6 batched and 5 timed answers were compared.
    assert entry["greedy_exact_ratio"] == pytest.approx(10 / 11)
    assert entry["by_depth"]["3"]["divergences"] == [
        {"answer": answers[2].prompt_id, "token": 4, "near_tie": False}
    ]
    assert entry["verdict"] == "undecided"
    assert entry["speedup_ratio"] == pytest.approx(12 / 3.75)


def test_an_answer_that_parts_at_a_near_tie_is_counted_and_passes(bench: Bench) -> None:
    evidence = _evidence(bench, 5)
    plain, answers = list(evidence.plain.answers), list(evidence.drafted[0].answers)
    rivals = tuple(Rival(token=7, margin=0.1) for _ in plain[2].answer_ids)
    plain[2] = plain[2].model_copy(update={"rivals": rivals})
    wrong = (*answers[2].answer_ids[:4], 7, 8, 9)
    answers[2] = answers[2].model_copy(update={"answer_ids": wrong})
    evidence = replace(
        evidence,
        plain=evidence.plain.model_copy(update={"answers": tuple(plain)}),
        drafted=(evidence.drafted[0].model_copy(update={"answers": tuple(answers)}),),
    )
    entry = report_family("good", evidence, bench.config.bootstrap)
    assert (entry["greedy_exact_ratio"], entry["verdict"]) == (1.0, "win")
    (divergence,) = entry["by_depth"]["3"]["divergences"]
    assert (divergence["token"], divergence["near_tie"]) == (4, True)
    assert all(outcome.same for outcome in evidence.outcomes(GOOD))


def test_a_family_that_was_not_timed_has_acceptance_but_no_speed(bench: Bench) -> None:
    entry = report_family("good", _evidence(bench, 0), bench.config.bootstrap)
    assert entry["acceptance_length"] == 4.0
    assert entry["speedup_ratio"] is entry["speedup_depth"] is entry["speedup_low"] is None
    assert entry["verdict"] == "undecided"


def test_a_missing_measurement_is_named(bench: Bench) -> None:
    units = plan_units(bench.config, {"code": 1}, {"good": None})
    records = [run_unit(unit, bench) for unit in units[1:]]
    with pytest.raises(DataError, match=r"1 of \d+ measurements are missing.*answers-code-plain"):
        build_report(
            units,
            records,
            regime=bench.regime,
            bootstrap=bench.config.bootstrap,
            facts=RunFacts(workloads={}),
        )


def test_a_number_from_another_regime_is_refused_and_the_field_named(
    bench: Bench, pretend: SimpleNamespace
) -> None:
    units = plan_units(bench.config, {"code": 1}, {"good": None})
    other = replace(bench, regime=pretend.regime(dtype="bfloat16"))
    records = [run_unit(units[0], bench), *(run_unit(unit, other) for unit in units[1:])]
    with pytest.raises(DataError, match=r"dtype was 'bfloat16', expected 'float32'"):
        build_report(
            units,
            records,
            regime=bench.regime,
            bootstrap=bench.config.bootstrap,
            facts=RunFacts(workloads={}),
        )
