"""Batch plans follow from seed and step alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagleray.errors import ConfigError
from eagleray.training.batches import BatchPlan


def plan(count: int, size: int, *, window: int = 1, seed: int = 0) -> BatchPlan:
    return BatchPlan([7 * i % 11 for i in range(count)], size, window_batches=window, seed=seed)


@given(st.integers(4, 40), st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=50)
def test_an_epoch_takes_each_sequence_at_most_once(count: int, size: int, window: int, seed: int) -> None:
    made = plan(count, size, window=window, seed=seed)
    for epoch in range(2):
        steps = range(epoch * made.steps_per_epoch, (epoch + 1) * made.steps_per_epoch)
        taken = [index for step in steps for index in made.global_batch(step)]
        assert len(set(taken)) == len(taken) == count - made.left_out_per_epoch
        assert made.left_out_per_epoch < size


def test_epochs_differ_and_leave_out_different_sequences() -> None:
    made = plan(10, 4)
    left_out = [
        frozenset(range(10)) - {i for step in (2 * e, 2 * e + 1) for i in made.global_batch(step)}
        for e in range(6)
    ]
    assert all(len(missing) == 2 for missing in left_out)
    assert len(set(left_out)) > 1


def test_a_step_is_the_same_whenever_it_is_asked_for() -> None:
    forwards, jumping = plan(20, 4, window=2), plan(20, 4, window=2)
    in_order = [forwards.global_batch(step) for step in range(12)]
    assert [jumping.global_batch(step) for step in (11, 3, 0)] == [in_order[step] for step in (11, 3, 0)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_the_same_global_batch_in_equal_parts(ranks: int) -> None:
    made = plan(20, 8)
    shares = [made.micro_batches(1, rank=rank, ranks=ranks, micro_batch_size=3) for rank in range(ranks)]
    assert sorted(i for share in shares for batch in share for i in batch) == sorted(made.global_batch(1))
    assert len({tuple(len(batch) for batch in share) for share in shares}) == 1


def test_a_wide_window_pads_less() -> None:
    lengths = [(37 * i) % 101 for i in range(64)]

    def padding(window: int) -> int:
        made = BatchPlan(lengths, 4, window_batches=window, seed=0)
        batches = [made.global_batch(step) for step in range(made.steps_per_epoch)]
        return sum(max(lengths[i] for i in b) * 4 - sum(lengths[i] for i in b) for b in batches)

    assert padding(16) < padding(4) < padding(1)


def test_three_sequences_for_four_ranks_is_an_error_and_no_hang() -> None:
    with pytest.raises(ConfigError, match="global_batch_size is 4, but the dataset has 3"):
        plan(3, 4)


def test_ranks_that_cannot_share_evenly_are_refused() -> None:
    with pytest.raises(ConfigError, match="not a multiple of the 3 workers"):
        plan(8, 4).micro_batches(0, rank=0, ranks=3, micro_batch_size=1)


def test_a_run_ends_at_the_earlier_of_epochs_and_steps() -> None:
    assert plan(10, 4).total_steps(3, None) == 6
    assert plan(10, 4).total_steps(3, 5) == 5
    assert plan(10, 4).total_steps(3, 50) == 6
