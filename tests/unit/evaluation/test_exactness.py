"""The exactness gate: golden files, and sampled answers that must be of one distribution."""

import random
from dataclasses import replace

import pytest

from eagleray.errors import DataError
from eagleray.evaluation.distribution import ALPHA, distribution_check, two_sample_p
from eagleray.evaluation.exactness import require_passed
from eagleray.evaluation.golden import GoldenFile, golden_files
from eagleray.evaluation.measure import measure_sampled
from eagleray.evaluation.units import SampledUnit, plan_units

REGIME = {"target_hash": "t", "template_hash": "c", "dtype": "float32", "max_new_tokens": 4, "engine": "a"}
ANSWERS = {"p1": (5, 6, 7), "p2": (8, 9)}


@pytest.fixture
def golden(tmp_path):
    path = tmp_path / "golden.json"
    assert GoldenFile(path=path, write=True).apply(REGIME, ANSWERS) == []
    return GoldenFile(path=path)


def test_the_answers_that_a_golden_file_holds_pass_under_any_engine(golden):
    (check,) = golden.apply({**REGIME, "engine": "b"}, ANSWERS)
    assert (check.outcome, check.subject) == ("passed", "target")
    assert "all 2 answers" in check.detail


def test_an_answer_that_changed_fails_and_says_where(golden):
    (check,) = golden.apply(REGIME, {**ANSWERS, "p2": (8, 9, 10), "p3": (1,)})
    assert check.outcome == "failed"
    assert check.detail == "1 of 2 answers differ from golden ones, first at prompt p2, token 2"
    with pytest.raises(DataError, match=r"golden outputs failed for target.*prompt p2"):
        require_passed([check])


def test_a_golden_file_of_another_target_or_length_is_refused(golden):
    with pytest.raises(DataError, match=r"target_hash was 't', now 'u'.*--write-golden"):
        golden.apply({**REGIME, "target_hash": "u"}, ANSWERS)
    with pytest.raises(DataError, match="max_new_tokens was 4, now 5"):
        golden.apply({**REGIME, "max_new_tokens": 5}, ANSWERS)


def test_a_golden_file_without_a_common_prompt_or_without_sense_is_refused(golden, tmp_path):
    with pytest.raises(DataError, match="None of the 1 prompts is among the 2"):
        golden.apply(REGIME, {"p9": (1,)})
    (tmp_path / "bad.json").write_text("[]")
    for name in ("bad.json", "none.json"):
        with pytest.raises(DataError, match="--write-golden"):
            GoldenFile(path=tmp_path / name).apply(REGIME, ANSWERS)


def test_the_old_file_is_read_before_the_new_one_is_written(tmp_path):
    path = tmp_path / "golden.json"
    assert [file.write for file in golden_files(path, path)] == [False, True]
    assert golden_files(None, None) == []


def draws(weights, count, seed):
    """Answers of a first token and three drawn ones."""
    draw = random.Random(seed)
    return [(0, *draw.choices(range(len(weights)), weights, k=3)) for _ in range(count)]


EXACT = (0.5, 0.25, 0.15, 0.1)


def test_draws_from_one_distribution_pass_and_their_p_values_are_even():
    p_values = [two_sample_p(draws(EXACT, 64, 2 * n), draws(EXACT, 64, 2 * n + 1)) for n in range(24)]
    assert min(p_values) > ALPHA
    # Of 24 even draws, 3 to 21 lie below a half in all but one of 10,000 trials.
    assert 3 <= sum(p < 0.5 for p in p_values) <= 21
    check = distribution_check("exact", draws(EXACT, 64, 1), draws(EXACT, 64, 2))
    assert (check.name, check.outcome) == ("sampling distribution", "passed")


@pytest.mark.parametrize(
    "lossy",
    [(0.85, 0.05, 0.05, 0.05), (0.5, 0.4, 0.1, 0.0)],
    ids=["sharper than the target", "a rare token never drawn"],
)
def test_draws_from_another_distribution_fail(lossy):
    check = distribution_check("lossy", draws(EXACT, 200, 1), draws(lossy, 200, 2))
    assert check.outcome == "failed"
    assert "alpha 0.001" in check.detail


def test_answers_that_end_at_other_places_are_told_apart():
    assert two_sample_p([(1, 2)] * 20, [(1,)] * 20) < ALPHA
    assert two_sample_p([(1, 2)] * 20, [(1, 2)] * 20) == 1.0


def test_a_token_of_one_answer_is_no_evidence_although_it_comes_often():
    # Tokens of one answer are not independent: these sides differ by many tokens and by one answer.
    assert two_sample_p([(1,) * 50, (2,) * 50], [(1,) * 50, (1,) * 50]) > 0.1


def test_sampled_answers_have_seeds_of_their_own_and_the_settings_of_the_test(bench):
    seen = []

    class Watched(type(bench.engine)):
        def generate(self, requests, **options):
            seen.extend(requests)
            return super().generate(requests, **options)

    config = bench.config.model_copy(update={"sampled_answers": 6, "sampled_tokens": 3})
    bench = replace(bench, engine=Watched(), config=config)
    units = [
        unit
        for unit in plan_units(config, {"code": 1, "prose": 1}, dict.fromkeys(bench.sources))
        if isinstance(unit, SampledUnit)
    ]
    assert [unit.name for unit in units] == [
        "sampled-code-plain",
        "sampled-code-good-3",
        "sampled-code-bad-3",
    ]
    records = [measure_sampled(unit, bench) for unit in units]
    assert {len(record.answers) for record in records} == {6}
    assert len({request.seed for request in seen}) == 3 * 6
    assert {(request.sampling.temperature, request.max_new_tokens) for request in seen} == {(1.0, 3)}
