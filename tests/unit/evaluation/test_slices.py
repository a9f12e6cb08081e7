"""Slices, and the prediction of one category's speed from the others' cost, with hand-computed numbers."""

import pytest

from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.prediction import Measured, predict_speeds
from eagleray.evaluation.slices import Outcome, slice_entries, slice_entry, worst_slice
from eagleray.speculation.acceptance import Cycle
from eagleray.speculation.costs import CyclePoint

CONFIG = BootstrapConfig(resamples=100)


def outcome(category="code", prompt_tokens=10, tau=2, speedup=1.5, timed=True, same=True):
    return Outcome(
        category=category,
        prompt_tokens=prompt_tokens,
        cycles=(Cycle(drafted=3, accepted=tau - 1, delivered=tau),) * 4,
        times=(12.0, 12.0, 12.0 / speedup, 12.0) if timed else None,
        same=same,
    )


def test_prompts_are_sliced_by_category_and_by_length_from_short_to_long():
    outcomes = [
        outcome(prompt_tokens=5000),
        outcome(prompt_tokens=63),
        outcome("prose", prompt_tokens=64),
    ]
    assert {name: entry["prompts"] for name, entry in slice_entries(outcomes, CONFIG).items()} == {
        "category code": 2,
        "category prose": 1,
        "prompts of 1 to 63 tokens": 1,
        "prompts of 64 to 255 tokens": 1,
        "prompts of 4096 tokens and more": 1,
    }


def test_the_worst_slice_is_the_slowest_and_among_untimed_ones_the_least_accepted():
    fast, slow = outcome(tau=2, speedup=3.0), outcome("prose", tau=3, speedup=0.5)
    assert worst_slice(slice_entries([fast, slow], CONFIG)) == "category prose"
    untimed = [outcome(tau=2, timed=False), outcome("prose", tau=3, timed=False)]
    assert worst_slice(slice_entries(untimed, CONFIG)) == "category code"


def test_a_slice_pools_sums_and_not_ratios():
    entry = slice_entry([outcome(tau=3, speedup=1.0)] * 3 + [outcome(tau=1, speedup=0.5)], CONFIG)
    assert entry["acceptance_length"] == pytest.approx(40 / 16)
    assert entry["speedup_ratio"] == pytest.approx(48 / 60)
    assert (entry["prompts"], entry["timed_prompts"]) == (4, 4)


def test_an_answer_that_differs_takes_the_verdict_of_its_slice():
    entry = slice_entry([outcome(speedup=1.9)] * 5 + [outcome(same=False)], CONFIG)
    assert (entry["verdict"], entry["greedy_exact_ratio"]) == ("undecided", pytest.approx(5 / 6))


def measured(category, depth, tau, cycle, at="batch 1"):
    return Measured(
        at=at,
        category=category,
        point=CyclePoint(draft_steps=depth, acceptance_length=tau, speedup=tau / cycle),
    )


def test_speed_is_predicted_from_the_cost_that_the_other_categories_showed():
    # A cycle of 1.2 plain steps, and 0.1 more for each drafted token.
    points = [measured("code", 2, 2.0, 1.4), measured("code", 6, 4.0, 1.8), measured("prose", 4, 1.2, 1.6)]
    found = predict_speeds(points)
    assert found["costs"]["batch 1"] == pytest.approx({"fixed_steps": 1.2, "steps_per_draft_token": 0.1})
    prose = found["points"][2]
    assert prose["predicted_speedup"] == pytest.approx(1.2 / 1.6)
    # From prose alone, at one depth, the cost is 1.6 at any depth.
    assert found["points"][1]["predicted_speedup"] == pytest.approx(4.0 / 1.6)


def test_a_cost_is_carried_over_to_no_other_load_and_one_category_predicts_nothing():
    found = predict_speeds([measured("code", 4, 2.0, 1.5), measured("prose", 4, 2.0, 3.0, at="batch 8")])
    assert [point["predicted_speedup"] for point in found["points"]] == [None, None]
    assert found["costs"]["batch 8"]["fixed_steps"] == pytest.approx(3.0)
