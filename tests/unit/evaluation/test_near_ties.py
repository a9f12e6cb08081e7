"""Answers may part where the target's own two likeliest tokens nearly tie, and nowhere else."""

from dataclasses import replace

import pytest

from eagleray.engines.base import TokenScore
from eagleray.evaluation.measure import measure_answers
from eagleray.evaluation.near_ties import first_divergence, is_near_tie
from eagleray.evaluation.records import Answer, Rival
from eagleray.evaluation.units import AnswersUnit


@pytest.mark.parametrize(
    ("plain", "drafted", "index"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1, 2), (1,), 1), ((1,), (1, 2), 1), ((), (), None)],
)
def test_answers_differ_where_a_token_differs_or_is_missing(
    plain: tuple[int, ...], drafted: tuple[int, ...], index: int | None
) -> None:
    assert first_divergence(plain, drafted) == index


def answer(*margins: float) -> Answer:
    """Tokens 10, 11, 12, whose rivals are 20, 21, 22."""
    return Answer(
        prompt_id="p",
        prompt_tokens=3,
        answer_ids=(10, 11, 12),
        finish_reason="length",
        cycles=(),
        rivals=tuple(Rival(token=20 + place, margin=margin) for place, margin in enumerate(margins)),
    )


@pytest.mark.parametrize(
    ("plain", "drafted", "near"),
    [
        (answer(9.0, 0.2, 9.0), (10, 21, 5), True),
        (answer(9.0, 0.3, 9.0), (10, 21, 5), False),
        (answer(9.0, 0.2, 9.0), (10, 5, 12), False),
        (answer(9.0, 9.0, 0.1), (10, 11), False),
        (answer(), (10, 21), False),
        (answer(9.0, 0.1, 9.0), (10, 11, 12), False),
    ],
    ids=["tie", "clear lead", "another token", "ends early", "nothing known", "equal"],
)
def test_a_near_tie_is_a_small_lead_over_the_very_token_that_came(plain, drafted, near):
    assert is_near_tie(plain, drafted) is near


@pytest.mark.parametrize(("dtype", "known"), [("bfloat16", 13), ("float32", 0)])
def test_rivals_are_asked_for_where_rounding_may_turn_an_answer(bench, pretend, dtype, known):
    score = TokenScore(chosen=-0.1, likeliest=((5, -0.1), (6, -0.35)))

    class Scored(pretend.Engine):
        def _generation(self, request, draft):
            generation = super()._generation(request, draft)
            asked = request.log_probabilities
            return replace(
                generation, scores=None if asked is None else (score,) * len(generation.answer_ids)
            )

    bench = replace(bench, engine=Scored(), regime=pretend.regime(dtype=dtype))
    record = measure_answers(AnswersUnit(family="code", draft=None), bench)
    assert {len(one.rivals) for one in record.answers} == {known}
    if known:
        assert record.answers[0].rivals[0].token == 6
        assert record.answers[0].rivals[0].margin == pytest.approx(0.25)
