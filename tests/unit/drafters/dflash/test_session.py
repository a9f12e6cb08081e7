"""Drafting a block live is what training rehearsed."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash.model import DFlashDrafter
from eagleray.drafters.dflash.step import Blocks, fill_blocks
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]
Observe = Callable[..., None]


@pytest.fixture
def drafter(heads: FrozenHeads) -> DFlashDrafter:
    torch.manual_seed(3)
    return DFlashDrafter(DFlashConfig(block_size=5), heads, None)


def test_a_draft_is_the_training_block_of_its_anchor(
    drafter: DFlashDrafter, make_batch: MakeBatch, observe: Observe
) -> None:
    batch = make_batch((3, 12))
    blocks = Blocks.choose(batch, 100, 5)
    with torch.no_grad():
        hidden_NKD = fill_blocks(drafter, batch, blocks)
        rehearsed = F.linear(drafter.norm(hidden_NKD[:, 1:]), drafter.target_head_UD()).argmax(-1)
    for n, anchor in enumerate(blocks.anchor_N.tolist()):
        session = drafter.open_session(1, 16)
        observe(session, batch, 0, 0, 0, anchor)
        assert torch.equal(session.draft(1, 4)[0], rehearsed[n])


def test_ragged_rows_draft_as_they_would_alone_and_rows_can_move(
    drafter: DFlashDrafter, make_batch: MakeBatch, observe: Observe
) -> None:
    batch = make_batch((3, 16), (3, 16), (3, 16))
    session = drafter.open_session(3, 16)
    for row, end in enumerate([5, 9, 2]):
        observe(session, batch, row, row, 0, end)
    drafted = session.draft(3, 4)
    for row, end in enumerate([5, 9, 2]):
        alone = drafter.open_session(1, 16)
        observe(alone, batch, row, 0, 0, end)
        assert torch.equal(drafted[row], alone.draft(1, 4)[0])
    session.move(2, 0)
    assert torch.equal(session.draft(1, 4)[0], drafted[2])


@pytest.mark.parametrize("depth", [1, 4])
def test_a_draft_of_any_depth_is_one_forward(
    drafter: DFlashDrafter, make_batch: MakeBatch, observe: Observe, depth: int
) -> None:
    session = drafter.open_session(1, 16)
    observe(session, make_batch((3, 16)), 0, 0, 0, 9)
    forwards: list[int] = []
    drafter.layers[0].mlp.register_forward_hook(lambda _module, inputs, _out: forwards.append(len(inputs[0])))
    session.draft(1, depth)
    assert forwards == [depth + 1]
