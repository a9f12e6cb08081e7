"""How many workers an attempt gets."""

import pytest

from eagleray.training.config import TrainingConfig
from eagleray.training.room import GiveUp, Wait, choose_workers, largest_share


def config(**settings: int | None) -> TrainingConfig:
    return TrainingConfig(global_batch_size=24, workers=8, wait_for_machines_s=60, **settings)


def test_where_there_is_room_all_workers_begin_at_once() -> None:
    assert choose_workers(config(), room=8, waited_s=0) == 8
    assert choose_workers(config(), room=100, waited_s=1000) == 8


def test_too_little_room_is_waited_for() -> None:
    waiting = choose_workers(config(min_workers=2), room=6, waited_s=59)
    assert isinstance(waiting, Wait)
    assert "room for 6 of 8" in waiting.why


@pytest.mark.parametrize(("room", "chosen"), [(7, 6), (6, 6), (5, 4), (3, 3), (2, 2)])
def test_after_the_wait_as_many_as_share_a_batch_evenly(room: int, chosen: int) -> None:
    assert choose_workers(config(min_workers=2), room=room, waited_s=60) == chosen


@pytest.mark.parametrize(("least", "room"), [(2, 1), (None, 7), (5, 5)])
def test_with_fewer_than_the_least_the_run_gives_up_and_says_what_to_do(least: int | None, room: int) -> None:
    """Five machines hold five workers, of which only four can share 24 sequences."""
    given_up = choose_workers(config(min_workers=least), room=room, waited_s=60)
    assert isinstance(given_up, GiveUp)
    assert "wait_for_machines_s" in given_up.why
    assert "goes on from the newest checkpoint" in given_up.why


def test_shares_of_a_batch() -> None:
    assert [largest_share(12, most) for most in (0, 1, 5, 6, 11, 12)] == [0, 1, 4, 6, 6, 12]


def test_more_workers_at_least_than_at_most_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at most workers"):
        config(min_workers=9)
