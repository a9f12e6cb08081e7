"""What enters the EAGLE-3 layer, and what its drafts may hold."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.eagle3.model import Eagle3Drafter
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]
Observe = Callable[..., None]


@pytest.fixture(params=[True, False], ids=["norm before residual", "norm after residual"])
def drafter(request: pytest.FixtureRequest, heads: FrozenHeads, counts: Tensor) -> Eagle3Drafter:
    torch.manual_seed(3)
    config = Eagle3Config(draft_vocab_size=24, ttt_steps=4, norm_before_residual=request.param)
    return Eagle3Drafter(config, heads, DraftVocabulary.from_counts(counts, 24))


def test_the_residual_stream_starts_at_the_normed_features_only_when_asked(drafter: Eagle3Drafter) -> None:
    hidden_ND = torch.full((1, 16), 10.0)
    residual_ND, _ = drafter.midlayer.enter(torch.zeros(1, 16), hidden_ND)
    expected = 1.0 if drafter.config.norm_before_residual else 10.0
    torch.testing.assert_close(residual_ND, torch.full((1, 16), expected))


def test_drafts_are_target_ids_of_the_draft_vocabulary(
    drafter: Eagle3Drafter, make_batch: MakeBatch, observe: Observe
) -> None:
    batch = make_batch((3, 16))
    session = drafter.open_session(1, 16)
    observe(session, batch, 0, 0, 0, 9)
    assert drafter.is_draftable(session.draft(1, 8)).all()
