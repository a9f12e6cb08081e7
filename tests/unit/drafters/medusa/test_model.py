"""What a Medusa head computes, is judged by and is exported as."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.catalog import restore_drafter
from eagleray.drafters.medusa.config import MedusaConfig
from eagleray.drafters.medusa.model import MedusaDrafter, MedusaHead
from eagleray.errors import ArtifactError
from eagleray.targets.heads import FrozenHeads
from eagleray.training.config import TrainingConfig
from eagleray.training.optimizer import DrafterOptimizer

MakeBatch = Callable[..., TrainingBatch]


def test_a_residual_block_adds_the_silu_of_its_layer() -> None:
    head = MedusaHead(2, 1)
    with torch.no_grad():
        head.layers[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        head.layers[0].bias.copy_(torch.tensor([0.0, 2.0]))
        out = head(torch.tensor([[1.0, 2.0]]))
    # 1 + silu(1) and 2 + silu(-2 + 2)
    torch.testing.assert_close(out, torch.tensor([[1.0 + 1 / (1 + torch.e**-1), 2.0]]))


@pytest.mark.parametrize("output", ["target", "shared", "own"])
def test_fresh_heads_are_the_target_s_own(heads: FrozenHeads, output: str) -> None:
    drafter = MedusaDrafter(MedusaConfig(output=output, num_blocks=2), heads, None)
    final_ND = torch.randn(3, 16)
    for head in range(4):
        torch.testing.assert_close(drafter.score(head, final_ND), final_ND @ heads.lm_head_VD.T)


@pytest.mark.parametrize("soft_targets", [False, True])
def test_head_k_at_position_p_is_judged_by_the_token_at_p_plus_2_plus_k_with_decaying_weight(
    heads: FrozenHeads, counts: Tensor, make_batch: MakeBatch, soft_targets: bool
) -> None:
    vocabulary = DraftVocabulary.from_counts(counts, 24)
    kept = vocabulary.ids_U.tolist()
    config = MedusaConfig(num_heads=2, draft_vocab_size=24, head_loss_decay=0.5, soft_targets=soft_targets)
    drafter = MedusaDrafter(config, heads, vocabulary)
    batch = make_batch((3, 9))
    loss, weight = 0.0, 0.0
    for label in range(3, 9):
        if int(batch.ids_BT[0, label]) in kept:
            target = torch.zeros(24)
            target[kept.index(int(batch.ids_BT[0, label]))] = 1
            if soft_targets:
                target = (batch.final_BTD[0, label - 1] @ heads.lm_head_VD[kept].T).softmax(-1)
            for head in range(2):
                scores = batch.final_BTD[0, label - 2 - head] @ heads.lm_head_VD[kept].T
                loss -= 0.5**head * float(target @ scores.log_softmax(-1))
                weight += 0.5**head
    terms = drafter(batch)
    assert terms.loss_sum.item() == pytest.approx(loss, rel=1e-4)
    assert float(terms.weight_sum) == pytest.approx(weight)
    assert terms.counted_K.tolist() == [6, 6]


def test_a_matrix_for_each_head_cannot_have_a_reduced_vocabulary() -> None:
    with pytest.raises(ValidationError, match="draft_vocab_size is 24 with output 'own'"):
        MedusaConfig(output="own", draft_vocab_size=24)


def test_no_key_is_mistaken_by_vllm_for_the_number_of_heads_or_layers(heads: FrozenHeads) -> None:
    config = MedusaDrafter(MedusaConfig(num_heads=3, num_blocks=2), heads, None).export_config()
    folded = [key for key in config if "num" in key and ("heads" in key or "layers" in key)]
    assert folded == ["num_heads", "num_hidden_layers"]
    assert (config["num_heads"], config["num_hidden_layers"]) == (3, 2)


@pytest.mark.parametrize(("output", "reduced"), [("target", True), ("shared", True), ("own", False)])
def test_tensors_have_the_names_and_shapes_that_vllm_loads(
    heads: FrozenHeads, counts: Tensor, output: str, reduced: bool
) -> None:
    vocabulary = DraftVocabulary.from_counts(counts, 24) if reduced else None
    drafter = MedusaDrafter(MedusaConfig(num_heads=2, output=output), heads, vocabulary)
    shapes = {name: tuple(tensor.shape) for name, tensor in drafter.export_tensors().items()}
    outputs = {
        "own": {"lm_heads.0.weight": (40, 16), "lm_heads.1.weight": (40, 16)},
    }.get(output, {"lm_head.weight": (24, 16), "token_map": (24,)})
    assert shapes == {
        "blocks.0.layers.0.weight": (16, 16),
        "blocks.0.layers.0.bias": (16,),
        "blocks.1.layers.0.weight": (16, 16),
        "blocks.1.layers.0.bias": (16,),
        **outputs,
    }
    config = drafter.export_config()
    assert config["truncated_vocab_size"] == (24 if reduced else 40)
    assert config["original_lm_head"] == (output != "own")


@pytest.mark.parametrize(
    "token_map",
    [[0, 0, 0, 0], [0, 5, 2, 9], [0, 2, 5, 40], [0, 2, 5]],
    ids=["zeroed", "unsorted", "beyond", "short"],
)
def test_a_lost_or_damaged_token_map_is_an_error(heads: FrozenHeads, token_map: list[int]) -> None:
    tensors = {"token_map": torch.tensor(token_map), "lm_head.weight": torch.zeros(4, 16)}
    with pytest.raises(ArtifactError, match="token_map holds"):
        restore_drafter(MedusaConfig(draft_vocab_size=4), heads, tensors, Path("folder"))
    del tensors["token_map"]
    with pytest.raises(ArtifactError, match="no tensor 'token_map'"):
        restore_drafter(MedusaConfig(draft_vocab_size=4), heads, tensors, Path("folder"))


@pytest.mark.parametrize("output", ["shared", "own"])
def test_rows_of_output_matrices_are_updated_one_by_one(heads: FrozenHeads, output: str) -> None:
    """Muon would move every row of a matrix, also those of tokens that got no gradient."""
    drafter = MedusaDrafter(MedusaConfig(num_heads=1, output=output), heads, None)
    matrix = drafter.lm_head.weight if output == "shared" else drafter.lm_heads[0].weight
    before = matrix.detach().clone()
    for parameter in drafter.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert matrix.grad is not None
    matrix.grad[7] = 1.0
    DrafterOptimizer(drafter, TrainingConfig()).step(1.0)
    assert (matrix != before).any(-1).nonzero().flatten().tolist() == [7]
