"""Seconds of a step by phase, with a clock that the test moves."""

from collections.abc import Iterator

from eagleray.training.step_clock import StepClock
from eagleray.watchdog.heartbeat import NoHeartbeat


def clock_at(*times_s: float) -> StepClock:
    ticks: Iterator[float] = iter(times_s)
    return StepClock(NoHeartbeat(), lambda: next(ticks))


def test_phases_add_up_over_micro_batches() -> None:
    clock = clock_at(0, 1, 3, 6, 10, 11, 13, 16)
    clock.enter("data")  # at 1
    clock.enter("forward")  # at 3
    clock.enter("backward")  # at 6
    clock.enter("data")  # at 10
    clock.enter("forward")  # at 11
    clock.enter("optimizer")  # at 13
    assert clock.split() == {"data": 3, "forward": 5, "backward": 4, "optimizer": 3}  # at 16


def test_only_what_follows_the_last_part_of_the_gradients_is_waiting() -> None:
    clock = clock_at(0, 0, 2, 5, 7, 8, 9)
    clock.enter("backward")
    for _ in range(3):  # two parts of the gradients, at 2 and 5, and the loop's own sum, at 7
        clock.enter_collective()
    clock.enter("optimizer")  # at 8
    assert clock.split() == {"backward": 5, "collective": 3, "optimizer": 1}


def test_a_single_exchange_ends_the_phase_before_it() -> None:
    clock = clock_at(0, 0, 4, 6, 6)
    clock.enter("backward")
    clock.enter_collective()  # at 4
    clock.enter("optimizer")  # at 6
    assert clock.split() == {"backward": 4, "collective": 2, "optimizer": 0}


def test_what_lies_between_steps_belongs_to_no_step_before_it() -> None:
    clock = clock_at(0, 0, 5, 7, 9)
    clock.enter("optimizer")
    clock.stepped(1)  # at 5
    assert clock.split() == {"optimizer": 5}  # at 7
    assert clock.split() == {}
