"""Reports are compared within a regime; across regimes only when asked, and then labelled."""

import copy

import pytest

from eagleray.errors import DataError
from eagleray.evaluation.comparison import compare_reports
from eagleray.evaluation.promotion import objections, promote, report_sha256


def entry(speedup=1.5, verdict="win", exact=1.0):
    return {
        "acceptance_length": 2.5,
        "acceptance_length_low": 2.4,
        "acceptance_length_high": 2.6,
        "speedup_ratio": speedup,
        "speedup_low": speedup - 0.1,
        "speedup_high": speedup + 0.1,
        "greedy_exact_ratio": exact,
        "verdict": verdict,
        "verdict_reason": "because",
    }


def report(**entries):
    return {
        "judged_by": "families",
        "drafters": {"eagle3": {"families": entries or {"code": entry()}, "loads": {}}},
        "exactness": [],
        "regime": {
            "fingerprint": "f",
            "machine": {"threads": 1, "cores": 2},
            "dtype": "float32",
            "drafter_hashes": {"eagle3": "abc"},
        },
    }


def elsewhere(one):
    other = copy.deepcopy(one)
    other["regime"]["machine"]["threads"] = 8
    other["regime"]["fingerprint"] = "g"
    return other


def test_another_drafter_of_the_same_regime_is_compared():
    better = report(code=entry(speedup=2.0))
    better["regime"]["drafter_hashes"] = {"eagle3": "def"}
    rows = {row.figure: row for row in compare_reports(report(), better).rows}
    assert rows["speedup_ratio"].outcome == "higher"
    assert rows["acceptance_length"].outcome == "undecided"


def test_another_regime_is_refused_and_the_field_named():
    with pytest.raises(DataError, match=r"machine\.threads was 1, now 8"):
        compare_reports(report(), elsewhere(report()))


def test_a_comparison_across_regimes_is_labelled_with_what_differs():
    compared = compare_reports(report(), elsewhere(report()), cross_regime=True)
    assert compared.differing == ("machine.threads was 1, now 8",)
    assert compared.rows


def test_reports_without_a_common_drafter_are_refused():
    other = report()
    other["drafters"] = {"dflash": other["drafters"]["eagle3"]}
    with pytest.raises(DataError, match="dflash"):
        compare_reports(report(), other)


def test_a_win_in_the_production_regime_is_promoted_and_signed():
    evidence = report()
    assert objections(evidence, "eagle3", evidence["regime"]) == []
    promotion = promote(evidence, "eagle3", "ada")
    assert (promotion.drafter_hash, promotion.signed_off_by) == ("abc", "ada")
    assert promotion.families["code"]["verdict"] == "win"
    assert promotion.report_sha256 == report_sha256(evidence)
    assert report_sha256(report(code=entry(1.6))) != promotion.report_sha256


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (report(code=entry(0.8, "loss")), "the verdict is loss"),
        (report(code=entry(1.0, "undecided")), "the verdict is undecided"),
        (report(code=entry(exact=0.99)), "99.00% of the answers"),
        (report(code=entry(), prose=entry(0.8, "loss")), "prose: the verdict is loss"),
        (elsewhere(report()), "not the production regime: machine.threads"),
    ],
)
def test_whatever_speaks_against_a_promotion_is_said(evidence, reason):
    assert any(reason in objection for objection in objections(evidence, "eagle3", report()["regime"]))


def test_a_failed_check_of_the_gate_speaks_against_a_promotion_of_its_drafter_alone():
    evidence = report()
    check = {"name": "sampling distribution", "subject": "eagle3", "outcome": "failed", "detail": "p 0.0001"}
    evidence["exactness"] = [{**check, "subject": "dflash"}]
    assert objections(evidence, "eagle3", evidence["regime"]) == []
    for subject in ("eagle3", "target"):
        evidence["exactness"] = [{**check, "subject": subject}]
        assert "sampling distribution failed" in objections(evidence, "eagle3", evidence["regime"])[0]


def test_only_the_named_families_must_be_won():
    evidence = report(code=entry(), prose=entry(0.8, "loss"))
    assert objections(evidence, "eagle3", evidence["regime"], ["code"]) == []
    assert objections(evidence, "eagle3", evidence["regime"], ["maths"]) == ["maths was not measured"]
    assert objections(evidence, "medusa", evidence["regime"])
