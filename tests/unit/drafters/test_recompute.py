"""Recomputing activations changes no gradient and keeps less of a step."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.targets.heads import FrozenHeads
from eagleray.training.recompute import recompute_activations
from tests.unit.drafters.conftest import VOCAB

CONFIGS = {
    "eagle3": Eagle3Config(
        name="eagle3", target_layer_ids=(0, 2, 4), draft_vocab_size=20, ttt_steps=3, intermediate_size=512
    ),
    "dflash": DFlashConfig(
        name="dflash", target_layer_ids=(0, 2, 4), block_size=4, num_layers=2, num_anchors=4,
        intermediate_size=512,
    ),
}  # fmt: skip


def step(drafter: TrainableDrafter, batch: TrainingBatch) -> tuple[int, dict[str, Tensor]]:
    """Bytes that the forward keeps for the backward pass, and the gradients."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = drafter(batch).loss_sum
    loss.backward()
    return sum(kept.values()), {
        name: parameter.grad for name, parameter in drafter.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_the_same_bit_for_bit_and_less_is_kept(
    name: str, heads: FrozenHeads, make_batch: Callable[..., TrainingBatch]
) -> None:
    batch = make_batch((4, 20), (6, 24))
    results = []
    for recompute in (False, True):
        torch.manual_seed(0)
        drafter = build_trainable_drafter(CONFIGS[name], heads, torch.ones(VOCAB, dtype=torch.int64))
        if recompute:
            assert recompute_activations(drafter) > 0
        results.append(step(drafter, batch))
        assert not any("checkpoint" in key for key in drafter.state_dict())
    (kept_bytes, gradients), (kept_less_bytes, same) = results
    assert gradients.keys() == same.keys()
    for key, gradient in gradients.items():
        assert torch.equal(gradient, same[key]), key
    assert kept_less_bytes < 0.8 * kept_bytes
