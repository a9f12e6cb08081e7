"""The depth that pays, found by measuring, on simulated engines whose best depth is known."""

import random

import pytest

from eagleray.speculation.acceptance import Cycle
from eagleray.speculation.costs import expected_tokens
from eagleray.speculation.depth import DepthChooser

DEEPEST = 7


class SimulatedEngine:
    """Costs and acceptance by formula, with noise of a tenth in the times.

    Args:
        acceptance: Of every slot.
        cycle_s: Seconds by rows and depth.
        told_s: What drafting costs besides, after cycles without.
    """

    def __init__(self, acceptance, cycle_s, seed=0, told_s=0.0):
        self.acceptance, self.cycle_s, self.told_s = acceptance, cycle_s, told_s
        self.random = random.Random(seed)
        self.spent_s = 0.0
        self.tokens = 0
        self.depths = []

    def run(self, chooser, rows, cycles):
        for _ in range(cycles):
            depth = chooser.next_depth(rows)
            counts = [self.draw(depth) for _ in range(rows)]
            seconds = self.cycle_s(rows, depth) * self.random.uniform(0.95, 1.05)
            if self.random.random() < 0.02:
                seconds *= 3
            told_s = self.told_s if depth > 0 and self.depths[-1:] == [0] else 0.0
            chooser.record(rows, depth, seconds, counts, told_s=told_s)
            self.spent_s += self.cycle_s(rows, depth) + told_s
            self.tokens += sum(count.delivered for count in counts)
            self.depths.append(depth)

    def draw(self, depth):
        accepted = 0
        while accepted < depth and self.random.random() < self.acceptance:
            accepted += 1
        return Cycle(drafted=depth, accepted=accepted, delivered=accepted + 1)

    def rate(self, rows, depth):
        """Tokens per second of a fixed depth."""
        return rows * expected_tokens([self.acceptance] * depth) / self.cycle_s(rows, depth)


def memory_bound(rows, depth):
    """A verification costs little more than a step, and each draft step a twentieth."""
    return 1.0 + (0.1 + 0.06 * depth if depth else 0.0)


def compute_bound(rows, depth):
    """With many rows every verified token costs."""
    return 1.0 + (0.1 + 0.06 * depth if depth else 0.0) + 0.02 * rows * depth


@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("cycle_s", [memory_bound, compute_bound])
@pytest.mark.parametrize("rows", [1, 8, 32])
def test_it_is_never_much_worse_than_the_best_fixed_depth(acceptance, cycle_s, rows):
    engine = SimulatedEngine(acceptance, cycle_s)
    chooser = DepthChooser(DEEPEST)
    engine.run(chooser, rows, 60)
    engine.spent_s = engine.tokens = 0
    engine.run(chooser, rows, 500)
    rate = engine.tokens / engine.spent_s
    plain = engine.rate(rows, 0)
    best = max(engine.rate(rows, depth) for depth in range(DEEPEST + 1))
    assert rate >= 0.97 * plain
    assert rate >= 0.85 * best  # a draw of 500 cycles strays that far from its mean


def test_a_drafter_that_is_never_right_is_hardly_asked():
    engine = SimulatedEngine(0.0, memory_bound)
    chooser = DepthChooser(DEEPEST)
    engine.run(chooser, 1, 2000)
    assert engine.depths[-1000:].count(0) > 980
    assert chooser.choice(1).depth == 0
    assert "plain decoding" in chooser.choice(1).reason


@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.3, 0.4, 0.45])
def test_trying_costs_little_where_telling_the_drafter_costs_more_than_a_cycle(acceptance):
    """Eight rows whose prompts the drafter has to read first, at many rates on both sides of paying."""
    engine = SimulatedEngine(acceptance, compute_bound, told_s=2.0)
    chooser = DepthChooser(DEEPEST)
    engine.run(chooser, 8, 60)
    engine.spent_s = engine.tokens = 0
    engine.run(chooser, 8, 4000)
    assert engine.tokens / engine.spent_s >= 0.98 * engine.rate(8, 0)


def test_it_follows_prompts_that_change():
    engine = SimulatedEngine(0.9, memory_bound)
    chooser = DepthChooser(DEEPEST)
    engine.run(chooser, 1, 200)
    assert chooser.choice(1).depth >= 5
    engine.acceptance = 0.02
    engine.run(chooser, 1, 300)
    assert chooser.choice(1).depth == 0
    engine.acceptance = 0.9
    engine.run(chooser, 1, 1200)
    assert chooser.choice(1).depth >= 4


def test_every_number_of_rows_has_a_depth_of_its_own():
    engine = SimulatedEngine(0.75, compute_bound)
    chooser = DepthChooser(DEEPEST)
    for _ in range(10):
        engine.run(chooser, 1, 40)
        engine.run(chooser, 32, 40)
    assert chooser.choice(1).depth >= 3
    assert chooser.choice(32).depth == 0


def test_a_batch_that_drains_goes_on_without_new_trials():
    engine = SimulatedEngine(0.9, memory_bound)
    chooser = DepthChooser(DEEPEST)
    engine.run(chooser, 32, 60)
    depth = chooser.choice(32).depth
    engine.depths.clear()
    for rows in (28, 20, 13, 7, 2):
        engine.run(chooser, rows, 3)
    assert depth >= 5
    assert set(engine.depths) <= {depth, DEEPEST}
    engine.depths.clear()
    engine.run(chooser, 48, 8)
    assert set(engine.depths) == {0, 1, 3, 7}


def test_noise_alone_does_not_make_it_waver():
    """Depths 3 and 4 are within a percent of each other here."""
    engine = SimulatedEngine(0.7, memory_bound, seed=3)
    chooser = DepthChooser(DEEPEST)
    engine.run(chooser, 1, 400)
    start = len(engine.depths)
    engine.run(chooser, 1, 1000)
    changes = sum(
        one != other for one, other in zip(engine.depths[start:], engine.depths[start + 1 :], strict=False)
    )
    assert changes < 100


def test_the_choice_says_what_it_promises():
    engine = SimulatedEngine(1.0, memory_bound)
    chooser = DepthChooser(2)
    assert chooser.choice(1) is None
    engine.run(chooser, 1, 100)
    choice = chooser.choice(1)
    assert (choice.rows, choice.depth) == (1, 2)
    assert choice.expected_tokens == pytest.approx(3.0, abs=0.1)
    assert choice.speedup == pytest.approx(3.0 / 1.22, rel=0.1)
    assert "depth 2 promises" in choice.reason


def test_rows_that_draft_nothing_count_as_refused():
    """Prompt lookup without a match: the cycle costs a plain step, and tells that depth buys nothing."""
    chooser = DepthChooser(3)
    for _ in range(2000):
        depth = chooser.next_depth(1)
        chooser.record(1, depth, 1.0, [Cycle(drafted=0, accepted=0, delivered=1)])
    assert chooser._tokens(3) < 1.05
    assert chooser.choice(1).speedup == pytest.approx(1.0, abs=0.05)


def test_a_drafter_that_seldom_proposes_is_charged_for_the_cycles_in_which_it_did():
    """Right whenever it proposes three tokens, which is every fourth cycle, at half a step more."""
    chooser, spent_s, tokens = DepthChooser(3), 0.0, 0
    for number in range(600):
        depth = chooser.next_depth(1) if number % 4 == 0 else min(chooser.next_depth(1), 0)
        seconds = 1.5 if depth else 1.0
        chooser.record(1, depth, seconds, [Cycle(drafted=depth, accepted=depth, delivered=depth + 1)])
        spent_s, tokens = spent_s + seconds, tokens + depth + 1
    assert tokens / spent_s > 1.3


@pytest.mark.parametrize("deepest", [1, 2, 3, 15])
def test_it_stays_within_its_bounds(deepest):
    engine = SimulatedEngine(0.9, memory_bound)
    engine.run(DepthChooser(deepest), 3, 300)
    assert set(engine.depths) <= set(range(deepest + 1))
    assert deepest in engine.depths
