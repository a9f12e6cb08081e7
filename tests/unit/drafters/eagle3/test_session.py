"""What enters the EAGLE-3 layer, and what its drafts may hold."""

import math
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


def test_features_are_normed_layer_by_layer_or_side_by_side(heads: FrozenHeads, counts: Tensor) -> None:
    features_NLD = torch.tensor([1.0, 10.0, 100.0])[None, :, None].expand(1, 3, 16)
    seen: dict[str, list[float]] = {}
    for norm in ("none", "per_layer", "joint"):
        config = Eagle3Config(draft_vocab_size=24, feature_norm=norm)
        drafter = Eagle3Drafter(config, heads, DraftVocabulary.from_counts(counts, 24))
        drafter.fc.register_forward_hook(
            lambda _module, inputs, _out, norm=norm: seen.update({norm: inputs[0][0, ::16].tolist()})
        )
        drafter.start(features_NLD, features_NLD[:, 0])
    root = math.sqrt((1 + 100 + 10000) / 3)
    assert seen["none"] == [1, 10, 100]
    assert seen["per_layer"] == pytest.approx([1, 1, 1], rel=1e-4)
    assert seen["joint"] == pytest.approx([1 / root, 10 / root, 100 / root], rel=1e-4)


def test_drafts_are_target_ids_of_the_draft_vocabulary(
    drafter: Eagle3Drafter, make_batch: MakeBatch, observe: Observe
) -> None:
    batch = make_batch((3, 16))
    session = drafter.open_session(1, 16)
    observe(session, batch, 0, 0, 0, 9)
    assert drafter.is_draftable(session.draft(1, 8)).all()
