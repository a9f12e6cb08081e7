"""Drafting live is what training rehearsed, in every form."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.masked_block.context import Blocks
from eagleray.drafters.blocks.masked_block.step import fill_blocks
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash.model import DFlashDrafter
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]
Observe = Callable[..., None]


@pytest.fixture
def drafter(heads: FrozenHeads, form: DFlashConfig) -> DFlashDrafter:
    """With weights so large that everything a slot attends to moves its state."""
    drafter = DFlashDrafter(form, heads, None)
    generator = torch.Generator().manual_seed(11)
    for parameter in drafter.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(std=0.4, generator=generator)
        else:
            parameter.data.uniform_(0.5, 2.0, generator=generator)
    return drafter


def rehearse(drafter: DFlashDrafter, batch: TrainingBatch, blocks: Blocks, ids_NK: Tensor) -> Tensor:
    """States of the training forward over blocks that hold these tokens."""
    with torch.no_grad():
        return fill_blocks(drafter, batch, replace(blocks, size=ids_NK.shape[1]), ids_NK)


def test_a_draft_is_the_training_block_of_its_anchor(
    drafter: DFlashDrafter, make_batch: MakeBatch, observe: Observe
) -> None:
    config, head_VD = drafter.config, drafter.target_head_UD()
    batch = make_batch((3, 16))
    blocks = Blocks.choose(batch, 100, 5)
    drafts, live = [], []
    for anchor in blocks.anchor_N.tolist():
        session = drafter.open_session(1, 20)
        observe(session, batch, 0, 0, 0, anchor)
        states: list[Tensor] = []
        handle = drafter.norm.register_forward_hook(lambda _m, _i, out, states=states: states.append(out[0]))
        drafts.append(session.draft(1, 4)[0])
        handle.remove()
        live.append(torch.cat(states))
    draft_NP = torch.stack(drafts)
    anchor_N1 = batch.ids_BT[0, blocks.anchor_N, None]
    masks_NK = drafter.block_ids(anchor_N1[:, 0], 5)
    if not config.parallel_block:
        # Token by token each draft token follows from those before it.
        rehearsed = rehearse(drafter, batch, blocks, torch.cat((anchor_N1, draft_NP[:, :3]), 1))
        expected_NP = F.linear(rehearsed, head_VD).argmax(-1)
    else:
        rehearsed = rehearse(drafter, batch, blocks, masks_NK)
        confidence_NP, expected_NP = F.linear(rehearsed[:, 1:], head_VD).softmax(-1).max(-1)
    if config.denoise_steps == 2:
        # The surer half of the first forward is held in the second.
        kept_NP = confidence_NP.argsort(1, descending=True).argsort(1) < 2
        masks_NK[:, 1:][kept_NP] = expected_NP[kept_NP]
        second = rehearse(drafter, batch, blocks, masks_NK)
        rehearsed = torch.cat((rehearsed, second), 1)
        expected_NP = torch.where(kept_NP, expected_NP, F.linear(second[:, 1:], head_VD).argmax(-1))
    torch.testing.assert_close(torch.stack(live), rehearsed)
    assert torch.equal(draft_NP, expected_NP)


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_a_draft_takes_the_forwards_that_its_form_needs(
    drafter: DFlashDrafter, make_batch: MakeBatch, observe: Observe, depth: int
) -> None:
    session = drafter.open_session(1, 20)
    observe(session, make_batch((3, 16)), 0, 0, 0, 9)
    forwards: list[int] = []
    drafter.layers[1].mlp.register_forward_hook(
        lambda _module, inputs, _out: forwards.append(inputs[0].shape[1])
    )
    session.draft(1, depth)
    block = [depth + 1] * drafter.config.denoise_steps
    assert forwards == (block if drafter.config.parallel_block else [1] * depth)
