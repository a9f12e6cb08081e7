import pytest

from eagleray.evaluation.bootstrap import Interval
from eagleray.evaluation.verdict import MIN_PROMPTS, judge, summarise


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.01, 1.4, "win"),
        (0.7, 0.99, "loss"),
        (0.9, 1.1, "undecided"),
        (1.0, 1.3, "undecided"),
        (0.8, 1.0, "undecided"),
    ],
)
def test_only_an_interval_that_excludes_one_decides(low: float, high: float, word: str) -> None:
    assert judge(Interval((low + high) / 2, low, high), MIN_PROMPTS, exact_ratio=1.0).word == word


def test_one_wrong_answer_forbids_a_win() -> None:
    verdict = judge(Interval(2.0, 1.9, 2.1), 40, exact_ratio=39 / 40)
    assert verdict.word == "undecided"
    assert "97.5%" in verdict.reason


@pytest.mark.parametrize(
    ("speedup", "tau", "word"),
    [
        (Interval(6.9, 3.1, 18.0), 4.8, "undecided"),  # something ran beside one side
        (Interval(3.2, 3.1, 3.3), 3.0, "undecided"),
        (Interval(1.53, 1.22, 2.01), 1.52, "win"),
        (Interval(6.9, 3.1, 18.0), None, "win"),
    ],
)
def test_a_speedup_above_tau_wins_nothing_unless_noise_can_explain_it(
    speedup: Interval, tau: float | None, word: str
) -> None:
    verdict = judge(speedup, MIN_PROMPTS, exact_ratio=1.0, tau=tau)
    assert verdict.word == word
    assert (f"speedup {speedup.value:.3g} is above tau" in verdict.reason) == (word == "undecided")


def test_too_few_prompts_decide_nothing() -> None:
    assert judge(Interval(2.0, 1.9, 2.1), MIN_PROMPTS - 1, exact_ratio=1.0).word == "undecided"


def test_without_timing_there_is_no_verdict() -> None:
    assert judge(None, 0, exact_ratio=1.0).reason == "speed was not measured"


def test_a_summary_is_one_sentence_that_names_every_family() -> None:
    def entry(word: str, ratio: float | None, reason: str = "") -> dict[str, object]:
        bounds = {} if ratio is None else {"speedup_low": ratio - 0.1, "speedup_high": ratio + 0.1}
        return {"verdict": word, "speedup_ratio": ratio, "verdict_reason": reason, **bounds}

    families = {
        "code": entry("win", 1.58),
        "arithmetic": entry("win", 1.2),
        "prose": entry("loss", 0.8),
        "maths": entry("undecided", 1.0, "the interval holds 1.0"),
        "poems": entry("undecided", None, "speed was not measured"),
    }
    assert summarise("eagle3", families) == (
        "eagle3 speeds up code (1.58x, 1.48 to 1.68) and arithmetic (1.20x, 1.10 to 1.30), "
        "slows down prose (0.80x, 0.70 to 0.90) and is undecided on maths "
        "(1.00x, 0.90 to 1.10: the interval holds 1.0) and poems (speed was not measured)."
    )
