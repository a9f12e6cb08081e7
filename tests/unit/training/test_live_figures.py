"""What is told of a step: hand-computed."""

import pytest

from eagleray.training.live_figures import curves, phases_s, tau_estimate, words

STEP = {
    "step": 2,
    "loss": 3.25,
    "grad_norm": 0.5,
    "learning_rate": 1e-3,
    "supervised_tokens": 300,
    "step_s": 2.0,
    "accuracy_slot_1": 0.5,
    "accuracy_slot_2": 0.4,
    "data_s": 0.2,
    "forward_s": 0.8,
    "backward_s": 0.8,
    "collective_s": 0.1,
    "optimizer_s": 0.1,
}


def test_slots_that_are_right_half_and_two_fifths_of_the_time_give_a_tau_of_1_7() -> None:
    assert tau_estimate(STEP) == pytest.approx(1 + 0.5 + 0.5 * 0.4)


def test_a_line_tells_tokens_per_s_and_where_the_time_went() -> None:
    before = STEP | {"step": 1, "supervised_tokens": 100, "replay_tau": 1.4}
    assert words([before, STEP]) == (
        "loss 3.250, tau about 1.70, replay tau 1.40, 100 tokens/s, "
        "data 10%, drafter 80%, exchange 5%, optimizer 5%"
    )


def test_a_log_without_seconds_by_phase_is_told_without_them() -> None:
    bare = {name: value for name, value in STEP.items() if not name.endswith("_s") or name == "step_s"}
    assert words([bare]) == "loss 3.250, tau about 1.70"


def test_curves_are_of_what_there_is() -> None:
    drawn = curves(STEP)
    assert drawn["accuracy/slot_2"] == 0.4
    assert drawn["seconds/forward"] == 0.8
    assert "tau/replay" not in drawn
    assert curves(STEP | {"replay_tau": 2.0})["tau/replay"] == 2.0
    assert curves(STEP | {"mirror_missed": 3})["mirror/missed"] == 3
    assert sum(phases_s(STEP).values()) == pytest.approx(2.0)
