"""What settings say of a drafter's size on paper is what the drafter has."""

import pytest
import torch

from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash2.config import DFlash2Config
from eagleray.drafters.eagle.config import EagleConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.medusa.config import MedusaConfig
from eagleray.drafters.mtp.config import MTPConfig
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import FrozenHeads


@pytest.fixture
def heads() -> FrozenHeads:
    """Of a target whose head width is not its width over its heads."""
    geometry = TargetGeometry.from_config(
        {
            "model_type": "qwen3",
            "num_hidden_layers": 9,
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 6,
            "vocab_size": 50,
            "max_position_embeddings": 64,
        },
        (2,),
    )
    embedding_VD = torch.randn(50, 32)
    return FrozenHeads(geometry=geometry, embed_VD=embedding_VD, lm_head_VD=embedding_VD)


@pytest.mark.parametrize(
    "config",
    [
        Eagle3Config(draft_vocab_size=20),
        Eagle3Config(train_head=False, feature_norm="per_layer"),
        Eagle3Config(feature_norm="joint", intermediate_size=24, num_heads=2, num_kv_heads=1, head_dim=8),
        EagleConfig(),
        EagleConfig(fc_bias=True),
        MTPConfig(),
        MedusaConfig(num_heads=3, num_blocks=2, output="target"),
        MedusaConfig(draft_vocab_size=20),
        MedusaConfig(num_heads=2, output="own"),
        DFlashConfig(num_layers=3),
        DFlashConfig(kv_injection=False, target_layer_ids=(1, 4)),
        DFlash2Config(conv_group_size=8, selector_rank=4, conv_kernel_size=3),
    ],
    ids=lambda config: config.name,
)
def test_the_count_on_paper_is_that_of_the_drafter(config: DrafterConfig, heads: FrozenHeads) -> None:
    drafter = build_trainable_drafter(config, heads, torch.arange(50))
    assert config.num_parameters(heads.geometry) == drafter.num_parameters()
