import pytest

from eagleray.evaluation.break_even import break_even


@pytest.mark.parametrize(
    ("speedups", "concurrency", "words"),
    [
        ({1: 1.5, 4: 0.5}, 2.0, "between 1 and 4"),
        ({1: 2.0, 2: 1.5}, None, "faster at every"),
        ({1: 0.9, 2: 0.8}, None, "faster at no"),
        ({1: 0.9, 2: 1.2}, None, "rises"),
    ],
)
def test_the_break_even_concurrency_lies_between_the_measured_ones(speedups, concurrency, words):
    found = break_even(speedups)
    assert words in found["reason"]
    assert found["concurrency"] == (concurrency and pytest.approx(concurrency))


def test_a_single_concurrency_breaks_even_nowhere():
    assert break_even({1: 1.5}) is None
