"""What the session of every drafter with weights promises, whatever the algorithm."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.blocks.config import LayerShape
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]
Observe = Callable[..., None]

CONFIGS = {
    "eagle3, norm before residual": Eagle3Config(draft_vocab_size=24, norm_before_residual=True),
    "eagle3, norm after residual": Eagle3Config(draft_vocab_size=24, norm_before_residual=False),
    "dflash": DFlashConfig(block_size=6),
}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def drafter(request: pytest.FixtureRequest, heads: FrozenHeads, counts: Tensor) -> TrainableDrafter:
    torch.manual_seed(3)
    config: LayerShape = request.param
    return build_trainable_drafter(config, heads, counts)


def test_observing_in_pieces_with_drafts_between_equals_observing_at_once(
    drafter: TrainableDrafter, make_batch: MakeBatch, observe: Observe
) -> None:
    batch = make_batch((3, 16))
    whole, pieces = drafter.open_session(1, 16), drafter.open_session(1, 16)
    observe(whole, batch, 0, 0, 0, 11)
    for start, end in [(0, 4), (4, 5), (5, 8), (8, 11)]:
        observe(pieces, batch, 0, 0, start, end)
        pieces.draft(1, 5)
    assert torch.equal(whole.draft(1, 5), pieces.draft(1, 5))
