"""Running a block wider than it is offered."""

from collections.abc import Callable

import torch

from eagleray.drafters.base import DraftSession, TrainableDrafter, TrainingBatch
from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.partial_block import PartialBlock
from eagleray.targets.decoder import TargetDecoder

BatchFor = Callable[..., TrainingBatch]
Observe = Callable[..., None]


def opened(source: TrainableDrafter | PartialBlock, batch: TrainingBatch, observe: Observe) -> DraftSession:
    session = source.open_session(2, 16)
    observe(session, batch, {0: (0, 0, 9), 1: (1, 0, 3)})
    return session


def test_a_partial_block_offers_the_first_tokens_of_the_whole_one(
    drafter: TrainableDrafter, batch_for: BatchFor, observe: Observe
) -> None:
    batch, slots = batch_for(drafter, (3, 16), (3, 16)), drafter.max_depth or 5
    slots = min(slots, 5)
    whole = opened(drafter, batch, observe).draft(2, slots)
    for depth in range(1, slots + 1):
        offered = opened(PartialBlock(drafter, slots + 1), batch, observe).draft(2, depth)
        assert torch.equal(offered, whole[:, :depth])


def test_slots_that_are_run_and_not_offered_change_what_a_masked_block_drafts(
    cases: dict[str, DrafterConfig],
    target: TargetDecoder,
    make_drafter: Callable[..., TrainableDrafter],
    batch_for: BatchFor,
    observe: Observe,
) -> None:
    drafter = make_drafter(cases["dflash"], target)
    batch = batch_for(drafter, *[(3, 16)] * 2)
    narrow = opened(drafter, batch, observe).draft(2, 1)
    wide = opened(PartialBlock(drafter, 4), batch, observe).draft(2, 1)
    assert not torch.equal(narrow, wide)


def test_a_partial_block_drafts_no_deeper_than_its_slots(drafter: TrainableDrafter) -> None:
    assert PartialBlock(drafter, 4).max_depth == 3


def test_rows_move_and_are_forgotten_as_in_the_whole_session(
    drafter: TrainableDrafter, batch_for: BatchFor, observe: Observe
) -> None:
    slots = min(drafter.max_depth or 3, 3)
    batch = batch_for(drafter, (3, 16), (3, 16))
    session = opened(PartialBlock(drafter, slots + 1), batch, observe)
    second = session.draft(2, 1)[1:]
    session.move(1, 0)
    assert torch.equal(session.draft(1, 1), second)
    session.reset(1)
    observe(session, batch, {1: (1, 0, 3)})
    assert torch.equal(session.draft(2, 1)[1:], second)
