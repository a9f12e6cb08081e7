"""Where training blocks are anchored."""

from collections.abc import Callable
from dataclasses import replace

import torch

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.masked_block.anchors import choose_anchors

MakeBatch = Callable[..., TrainingBatch]


def test_an_anchor_and_the_token_after_it_are_answer_tokens(make_batch: MakeBatch) -> None:
    rows_N, anchors_N = choose_anchors(make_batch((4, 8), (6, 7), (2, 5), padding=2), 100)
    assert list(zip(rows_N.tolist(), anchors_N.tolist(), strict=True)) == [
        (0, 4),
        (0, 5),
        (0, 6),
        (2, 2),
        (2, 3),
    ]


def test_the_draw_is_ascending_and_without_replacement(make_batch: MakeBatch) -> None:
    _, anchors_N = choose_anchors(make_batch((2, 60)), 20)
    drawn = anchors_N.tolist()
    assert len(set(drawn)) == 20
    assert drawn == sorted(drawn)
    assert set(drawn) <= set(range(2, 59))


def test_the_seed_alone_decides_the_draw(make_batch: MakeBatch) -> None:
    batch = make_batch((2, 60), seed=5)
    first, again, other = (choose_anchors(b, 20)[1] for b in (batch, batch, replace(batch, seed=6)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_row_draws_the_same_anchors_in_any_batch(make_batch: MakeBatch) -> None:
    batch = make_batch((2, 50), (3, 60), seed=5)
    rows_N, anchors_N = choose_anchors(batch, 10)
    alone = TrainingBatch(
        ids_BT=batch.ids_BT[1:],
        lengths_B=batch.lengths_B[1:],
        supervised_BT=batch.supervised_BT[1:],
        features_BTLD=batch.features_BTLD[1:],
        final_BTD=batch.final_BTD[1:],
        seed=5,
    )
    assert torch.equal(choose_anchors(alone, 10)[1], anchors_N[rows_N == 1])
