"""The line through early trials, by hand."""

import pytest

from eagleray.training.learning_curve import describe_curve, early_trials, per_tenfold, read_curve


def log(total: int, taus: dict[int, float]) -> list[dict[str, float]]:
    return [
        {"step": step, "total_steps": total, **({"replay_tau": taus[step]} if step in taus else {})}
        for step in range(1, total + 1)
    ]


def test_trials_are_made_at_1_3_and_10_percent_of_runs_that_have_them() -> None:
    assert early_trials(200) == {2, 6, 20}
    assert early_trials(99) == frozenset()


def test_a_straight_line_on_the_scale_of_tenfolds() -> None:
    assert per_tenfold([(0.01, 1.0), (0.1, 1.5), (1.0, 2.0)]) == pytest.approx(0.5)
    assert per_tenfold([(0.1, 2.0), (1.0, 2.0)]) == 0


def test_regular_trials_in_between_are_left_out() -> None:
    steps = log(200, {2: 1.1, 6: 1.3, 20: 1.6, 100: 1.9, 200: 2.1})
    assert read_curve(steps) == [(0.01, 1.1), (0.03, 1.3), (0.1, 1.6), (1.0, 2.1)]
    assert read_curve(log(200, {})) == []


def test_a_growing_tau_is_told_with_what_ten_times_the_data_would_give() -> None:
    told = describe_curve([(0.01, 1.0), (0.1, 1.5), (1.0, 2.0)])
    assert told is not None
    assert "1.00 at 1%, 1.50 at 10%, 2.00 at 100%" in told
    assert "0.50 for each tenfold" in told
    assert "about 2.5" in told


def test_a_tau_that_does_not_grow_is_told_as_a_fault() -> None:
    told = describe_curve([(0.01, 1.02), (0.03, 1.0), (0.1, 1.01), (1.0, 1.02)])
    assert told is not None
    assert "something is wrong" in told


def test_a_run_that_was_too_short_says_nothing() -> None:
    assert describe_curve(read_curve(log(50, {50: 1.4}))) is None
