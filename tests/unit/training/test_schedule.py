"""The learning rate rises, then falls to nothing."""

import pytest

from eagleray.training.schedule import cosine_with_warmup


def test_rises_linearly_peaks_and_falls_by_a_cosine() -> None:
    factors = [cosine_with_warmup(step, 100, 0.04) for step in range(100)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[4 + 48] == pytest.approx(0.5)
    assert factors == sorted(factors[:4]) + sorted(factors[4:], reverse=True)
    assert 0 < factors[-1] < 0.001


def test_without_warmup_the_first_step_is_the_peak() -> None:
    assert cosine_with_warmup(0, 10, 0.0) == 1.0
