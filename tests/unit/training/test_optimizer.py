"""Which parameters an optimiser may mix the rows of."""

import pytest
import torch

from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.dflash2.config import DFlash2Config
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.targets.heads import FrozenHeads
from eagleray.training.config import TrainingConfig
from eagleray.training.optimizer import DrafterOptimizer


@pytest.mark.parametrize(
    ("config", "name", "is_token_matrix"),
    [
        (Eagle3Config(draft_vocab_size=30), "lm_head.weight", True),
        (Eagle3Config(draft_vocab_size=30), "midlayer.mlp.up_proj.weight", False),
        (DFlash2Config(selector_rank=4), "candidate_selector.successor_codebook", True),
        (DFlash2Config(selector_rank=4), "candidate_selector.predecessor_codebook", True),
        (DFlash2Config(selector_rank=4), "candidate_selector.hidden_projection.weight", False),
    ],
)
def test_muon_moves_no_row_of_a_token_that_taught_nothing(
    heads: FrozenHeads, config: DrafterConfig, name: str, is_token_matrix: bool
) -> None:
    torch.manual_seed(0)
    drafter = build_trainable_drafter(config, heads)
    optimizer = DrafterOptimizer(drafter, TrainingConfig(optimizer="muon"))
    for parameter in drafter.parameters():
        parameter.grad = torch.zeros_like(parameter)
    matrix = drafter.get_parameter(name)
    rows = [0, 3] if is_token_matrix else list(range(len(matrix)))
    matrix.grad = torch.zeros_like(matrix)
    matrix.grad[rows] = torch.randn(len(rows), matrix.shape[1])
    before = matrix.detach().clone()
    optimizer.step(1.0)
    changed_V = (matrix != before).any(1)
    assert changed_V.nonzero().flatten().tolist() == rows
    sizes_V = (matrix - before).norm(dim=1)[rows]
    # AdamW's first step moves every entry by its rate; Muon's has rows of unequal size.
    adam_size = TrainingConfig().adam_learning_rate * matrix.shape[1] ** 0.5
    assert torch.allclose(sizes_V, torch.full_like(sizes_V, adam_size), rtol=1e-3) == is_token_matrix
