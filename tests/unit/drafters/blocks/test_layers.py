"""Shared layers against transformers."""

from dataclasses import replace

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from eagleray.drafters.blocks.config import LayerShape
from eagleray.drafters.blocks.layers import Dimensions, Rotary
from eagleray.errors import ConfigError
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import FrozenHeads


class Shape(LayerShape):
    name: str = "shape"

    def tapped_layers(self, num_layers: int) -> tuple[int, ...]:
        return ()

    def num_parameters(self, geometry: TargetGeometry) -> int:
        return 0

    @property
    def max_depth(self) -> int | None:
        return None


def test_rotation_equals_the_rotation_of_transformers(heads: FrozenHeads) -> None:
    positions = torch.tensor([0, 1, 7, 63])
    angles = Rotary(heads.geometry, 8)(positions)
    queries_NHd = torch.randn(4, 3, 8)
    frequencies = 100000.0 ** -(torch.arange(0, 8, 2) / 8)
    table = torch.cat([positions[:, None] * frequencies] * 2, -1)
    expected, _ = apply_rotary_pos_emb(
        queries_NHd.transpose(0, 1)[None],
        queries_NHd.transpose(0, 1)[None],
        table.cos()[None],
        table.sin()[None],
    )
    torch.testing.assert_close(angles.rotate(queries_NHd), expected[0].transpose(0, 1))


def test_rotary_scaling_of_the_target_is_kept(heads: FrozenHeads) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    scaled = Rotary(replace(heads.geometry, rope_scaling=scaling), 8)
    torch.testing.assert_close(scaled.frequencies * 4, Rotary(heads.geometry, 8).frequencies)


def test_head_width_comes_from_the_target_and_not_from_its_width(heads: FrozenHeads) -> None:
    dimensions = Dimensions.resolve(Shape(), heads.geometry)
    assert (dimensions.hidden_size, dimensions.num_heads, dimensions.head_dim) == (16, 4, 8)
    assert dimensions.intermediate_size == 24


def test_key_heads_must_divide_query_heads(heads: FrozenHeads) -> None:
    with pytest.raises(ConfigError, match="4 query heads and 3"):
        Dimensions.resolve(Shape(num_kv_heads=3), heads.geometry)
