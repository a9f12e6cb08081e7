import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagleray.evaluation.bootstrap import bootstrap, ratio_of_sums, speedup_of_sums, tail_share
from eagleray.evaluation.config import BootstrapConfig

CONFIG = BootstrapConfig(resamples=500)
ROWS = [[8.0, 4.0], [3.0, 3.0], [12.0, 2.0]]


def test_a_figure_comes_from_sums_and_not_from_a_mean_of_ratios() -> None:
    # 23 / 9; the mean of the ratios 2, 1 and 6 would be 3.
    assert bootstrap(ROWS, ratio_of_sums, CONFIG).value == pytest.approx(23 / 9)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    assert bootstrap(ROWS, ratio_of_sums, CONFIG) == bootstrap(ROWS, ratio_of_sums, CONFIG)
    other = CONFIG.model_copy(update={"seed": 1, "resamples": 7})
    assert bootstrap(ROWS, ratio_of_sums, other) != bootstrap(ROWS, ratio_of_sums, CONFIG)


def test_prompts_that_agree_have_no_width() -> None:
    interval = bootstrap([[6.0, 2.0]] * 5, ratio_of_sums, CONFIG)
    assert (interval.low, interval.value, interval.high) == (3.0, 3.0, 3.0)


def test_the_interval_of_two_prompts_spans_the_two() -> None:
    interval = bootstrap([[1.0, 1.0], [3.0, 1.0]], ratio_of_sums, CONFIG)
    assert (interval.low, interval.value, interval.high) == (1.0, 2.0, 3.0)


def test_speedup_is_rate_over_rate_even_where_token_counts_differ() -> None:
    # Plain: 20 tokens in 10 s = 2 per s. Drafted: 18 tokens in 3 s = 6 per s.
    assert float(speedup_of_sums(np.array([10.0, 20.0, 3.0, 18.0]))) == pytest.approx(3.0)


def test_no_cycles_is_zero_and_not_an_error() -> None:
    assert bootstrap([[0.0, 0.0]], ratio_of_sums, CONFIG).value == 0.0


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=1, max_size=8))
def test_an_interval_lies_within_the_ratios_of_single_prompts(rows: list[tuple[float, float]]) -> None:
    ratios = [delivered / cycles for delivered, cycles in rows]
    interval = bootstrap(rows, ratio_of_sums, BootstrapConfig(resamples=50))
    assert min(ratios) - 1e-9 <= interval.low <= interval.high <= max(ratios) + 1e-9


@pytest.mark.parametrize(("count", "quantile"), [(5, 2.776), (8, 2.365), (24, 2.069)])
def test_few_prompts_reach_as_far_as_students_t(count: int, quantile: float) -> None:
    from statistics import NormalDist

    reach = -NormalDist().inv_cdf(tail_share(0.95, count))
    assert reach == pytest.approx(quantile * (count / (count - 1)) ** 0.5, rel=5e-3)


@pytest.mark.parametrize("count", [5, 12])
def test_of_many_null_comparisons_about_one_in_twenty_is_called_a_difference(count: int) -> None:
    draw = np.random.default_rng(0)
    missed = 0
    for _ in range(300):
        rows = draw.normal(1.0, 0.1, size=(count, 2))
        interval = bootstrap(rows.tolist(), ratio_of_sums, CONFIG)
        missed += not interval.low <= 1.0 <= interval.high
    assert missed <= 25  # 15 are expected; plain percentiles of 5 prompts miss 42
