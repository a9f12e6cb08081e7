"""What drafting a block costs."""

from collections.abc import Callable

import pytest
import torch

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash.model import DFlashDrafter
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]
Observe = Callable[..., None]


@pytest.fixture
def drafter(heads: FrozenHeads) -> DFlashDrafter:
    torch.manual_seed(3)
    return DFlashDrafter(DFlashConfig(block_size=5), heads, None)


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
