"""The learning rate rises, stays or falls as the schedule says."""

from typing import Any

import pytest

from eagleray.training.config import TrainingConfig
from eagleray.training.schedule import rate_factor


def factors(steps: int, **settings: Any) -> list[float]:
    return [rate_factor(step, steps, TrainingConfig(**settings)) for step in range(steps)]


def test_cosine_rises_linearly_peaks_and_falls() -> None:
    found = factors(100, warmup_ratio=0.04)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[4 + 48] == pytest.approx(0.5)
    assert found == sorted(found[:4]) + sorted(found[4:], reverse=True)
    assert 0 < found[-1] < 0.001


def test_wsd_is_level_between_its_rise_and_its_fall() -> None:
    found = factors(20, schedule="wsd", warmup_ratio=0.1, decay_ratio=0.2)
    assert found == pytest.approx([1 / 3, 2 / 3] + 14 * [1.0] + [0.8, 0.6, 0.4, 0.2])


def test_constant_stays_at_its_peak() -> None:
    assert factors(5, schedule="constant", warmup_ratio=0.2) == [0.5, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_without_warmup_the_first_step_is_the_peak(schedule: str) -> None:
    assert factors(10, schedule=schedule, warmup_ratio=0.0)[0] == 1.0


def test_a_rise_and_a_fall_that_do_not_fit_into_the_run_are_refused() -> None:
    with pytest.raises(ValueError, match="take more than the run"):
        TrainingConfig(schedule="wsd", warmup_ratio=0.5, decay_ratio=0.6)
