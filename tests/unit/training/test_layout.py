"""Short sequences share rows; the steps stay the same sets of sequences."""

import random
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagleray.training.batches import BatchPlan
from eagleray.training.layout import MOST_PADDING, fill_rows, pack_micro_batches, split_into

ROOM = 100
LENGTHS = st.lists(st.integers(1, ROOM), min_size=1, max_size=40).map(lambda them: sorted(them)[::-1])


def test_the_next_row_begins_where_a_sample_does_not_fit() -> None:
    assert fill_rows([60, 40, 30, 80, 10], ROOM) == [[0, 1], [2], [3, 4]]
    assert fill_rows([60, 40, 30], None) == [[0], [1], [2]]


@given(LENGTHS, st.integers(1, 4))
@settings(max_examples=60)
def test_a_micro_batch_fits_its_rows_and_its_padding_is_bounded(lengths: list[int], rows: int) -> None:
    batches = pack_micro_batches(lengths, ROOM, rows)
    assert list(chain.from_iterable(batches)) == list(range(len(lengths)))
    for batch in batches:
        taken = [lengths[index] for index in batch]
        assert len(fill_rows(taken, ROOM)) <= rows
        assert len(taken) * max(taken) <= MOST_PADDING * sum(taken) <= MOST_PADDING * rows * ROOM


@given(LENGTHS, st.integers(1, 4), st.integers(1, 40))
@settings(max_examples=60)
def test_a_split_micro_batch_still_fits(lengths: list[int], rows: int, count: int) -> None:
    cut = split_into(pack_micro_batches(lengths, ROOM, rows), min(count, len(lengths)))
    assert len(cut) >= min(count, len(lengths))
    assert all(cut)
    assert list(chain.from_iterable(cut)) == list(range(len(lengths)))
    assert all(len(fill_rows([lengths[index] for index in batch], ROOM)) <= rows for batch in cut)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_pack_their_own_share_of_the_same_batch_into_as_many_micro_batches(ranks: int) -> None:
    dice = random.Random(3)
    lengths = [dice.choice([10, 20, 60, 100]) for _ in range(64)]
    plan = BatchPlan(lengths, 16, window_batches=1, seed=0)
    counts = []
    for step in range(plan.steps_per_epoch):
        apart = [plan.micro_batches(step, rank=r, ranks=ranks, micro_batch_size=1) for r in range(ranks)]
        packed = [
            plan.micro_batches(step, rank=r, ranks=ranks, micro_batch_size=1, row_tokens=ROOM)
            for r in range(ranks)
        ]
        for one, other in zip(apart, packed, strict=True):
            assert list(chain.from_iterable(one)) == list(chain.from_iterable(other))
        assert len({len(share) for share in packed}) == 1
        counts.append(len(packed[0]) / len(apart[0]))
    assert sum(counts) < 0.9 * len(counts)
