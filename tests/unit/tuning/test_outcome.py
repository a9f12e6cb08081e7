"""Figures, ties and the choice between outcomes, by hand."""

from collections.abc import Callable

import pytest

from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.interleaved import GroupTimes, SettingTime
from eagleray.tuning.config import Point
from eagleray.tuning.outcome import Outcome, Scale, ratio, summarise, tied
from eagleray.tuning.ranking import contenders, dominates, rank

MakePoint = Callable[..., Point]
MakeOutcome = Callable[..., Outcome]
MakeGroups = Callable[..., tuple[GroupTimes, ...]]


def test_figures_come_from_sums_over_groups(point: MakePoint, outcome: MakeOutcome) -> None:
    """20 tokens in 2 s plain; 20 in 1 s and 20 in 2 s drafted: 40 / 3 against 10 tokens/s."""
    found = outcome(point("chain", depth=1), [2.0, 1.0], tau=2.5)
    assert found.figures["speedup"].value == pytest.approx(40 / 3 / 10)
    assert found.figures["tokens_per_s"].value == pytest.approx(40 / 3)
    assert found.figures["tau"].value == pytest.approx(40 / 16)
    assert (found.figures["speedup"].low, found.figures["speedup"].high) == (1.0, 2.0)
    assert found.feasible
    assert not found.loss


def test_a_slow_machine_changes_tokens_per_s_of_no_trial(
    point: MakePoint, groups: MakeGroups, scale: Scale, bootstrap_config: BootstrapConfig
) -> None:
    def slowed(time: SettingTime) -> SettingTime:
        return time.model_copy(update={"verify_s": 3 * time.verify_s})

    calm = groups([1.5, 1.2])
    busy = [
        group.model_copy(update={"plain": slowed(group.plain), "settings": (slowed(group.settings[0]),)})
        for group in calm
    ]
    one, other = (
        summarise(point("plain"), each, regime="r", scale=scale, config=bootstrap_config, wall_s=1.0)
        for each in (calm, busy)
    )
    rates = [found.figures["tokens_per_s"] for found in (one, other)]
    assert rates[0].value == pytest.approx(rates[1].value)


def test_goodput_counts_only_requests_within_the_bound(point: MakePoint, outcome: MakeOutcome) -> None:
    """Bound 150 ms. 20 tokens in 1 s are 50 ms each; 20 in 4 s are 200 ms and do not count."""
    found = outcome(point("chain", depth=1), [2.0, 0.5])
    assert found.figures["goodput"].value == pytest.approx(20 / 5)
    assert found.figures["tokens_per_s"].value == pytest.approx(40 / 5)


def test_a_group_of_requests_waits_together(scale: Scale, bootstrap_config: BootstrapConfig) -> None:
    """Two requests of 10 tokens each in 2 s: every one of them waited 200 ms a token."""
    time = SettingTime(tokens=20, cycles=10, draft_s=0.0, verify_s=2.0, host_s=0.0)
    group = GroupTimes(prompts=("a", "b"), plain=time, settings=(time,))
    found = summarise(
        Point(drafter="plain"), [group], regime="r", scale=scale, config=bootstrap_config, wall_s=0.0
    )
    assert found.figures["goodput"].value == 0.0


def test_differences_inside_the_noise_are_ties_and_outside_are_not(
    point: MakePoint, outcome: MakeOutcome, scale: Scale, bootstrap_config: BootstrapConfig
) -> None:
    one = outcome(point("chain", depth=1), [1.0, 1.5, 2.0, 2.5])
    mixed = outcome(point("chain", depth=2), [1.1, 1.4, 2.1, 2.4])
    slower = outcome(point("chain", depth=3), [0.8, 1.2, 1.6, 2.0])
    assert tied(one, mixed, "tokens_per_s", scale, bootstrap_config)
    assert not tied(one, slower, "tokens_per_s", scale, bootstrap_config)
    # Both intervals overlap widely; only prompt by prompt does the difference show.
    assert slower.figures["speedup"].high > one.figures["speedup"].low
    exact = ratio(one, slower, "tokens_per_s", scale, bootstrap_config)
    assert (exact.low, exact.value, exact.high) == pytest.approx((1.25, 1.25, 1.25))


def test_ranking_leaves_out_what_is_infeasible_and_names_ties(
    point: MakePoint, outcome: MakeOutcome, scale: Scale, bootstrap_config: BootstrapConfig
) -> None:
    fast_but_wrong = outcome(
        point("block", block_size=4, depth=3), [9.0] * 4, divergence="prompt p0, token 3"
    )
    best = outcome(point("chain", depth=1), [1.0, 1.5, 2.0, 2.5])
    close = outcome(point("chain", depth=2), [1.1, 1.3, 2.1, 2.3])
    plain = outcome(point("plain"), [0.5, 0.7, 0.9, 1.1])
    found = rank([plain, fast_but_wrong, close, best], ("tokens_per_s",), scale, bootstrap_config)
    assert found.ranked == (best, close, plain)
    assert found.ties == (close,)
    assert found.front == (best,)
    assert contenders(found, point("plain")) == (best.point, close.point, point("plain"))
    assert contenders(found, best.point) == (best.point, close.point)


def test_the_front_holds_what_no_other_point_beats_in_everything(
    point: MakePoint, outcome: MakeOutcome, scale: Scale, bootstrap_config: BootstrapConfig
) -> None:
    fast = outcome(point("chain", depth=1), [2.0, 2.0], tau=2.0)
    long = outcome(point("chain", depth=3), [1.5, 1.5], tau=4.0)
    beaten = outcome(point("chain", depth=2), [1.4, 1.4], tau=4.0)
    objectives = ("tokens_per_s", "tau")
    assert dominates(long, beaten, objectives)
    assert not dominates(fast, long, objectives)
    assert not dominates(fast, fast, objectives)
    assert rank([beaten, long, fast], objectives, scale, bootstrap_config).front == (fast, long)


def test_nothing_feasible_has_no_best(
    point: MakePoint, outcome: MakeOutcome, scale: Scale, bootstrap_config: BootstrapConfig
) -> None:
    wrong = outcome(point("plain"), [1.0], divergence="prompt p0, token 3")
    assert rank([wrong], ("tau",), scale, bootstrap_config).best is None
