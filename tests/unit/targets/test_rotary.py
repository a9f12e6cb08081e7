"""The complex product is the rotation of checkpoints, on reordered heads."""

import dataclasses
import math

import pytest
import torch

from eagleray.errors import ArtifactError
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.rotary import Rotary, alternate_halves, rotate_

GEOMETRY = TargetGeometry.from_config(
    {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "vocab_size": 4,
        "max_position_embeddings": 64,
        "rope_theta": 100.0,
    },
    (),
)
CPU = torch.device("cpu")


def test_halves_alternate_within_each_head():
    weight = torch.arange(8.0)[:, None]
    assert alternate_halves(weight, 4)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_one_head_rotates_by_hand_computed_angles():
    # Two pairs of head width 4 at theta 100 turn by position * (1, 1/10).
    x_THN = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]])
    rotate_(x_THN, Rotary(GEOMETRY, CPU).factors(torch.tensor([3])))
    expected = [math.cos(3.0), math.sin(3.0), -2 * math.sin(0.3), 2 * math.cos(0.3)]
    torch.testing.assert_close(x_THN[0, 0], torch.tensor(expected))


def test_coarse_numbers_are_rotated_in_float32():
    x_THN = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]]).bfloat16()
    rotate_(x_THN, Rotary(GEOMETRY, CPU).factors(torch.tensor([3])))
    expected = torch.tensor([math.cos(3.0), math.sin(3.0), -2 * math.sin(0.3), 2 * math.cos(0.3)])
    assert torch.equal(x_THN[0, 0], expected.bfloat16())


def test_linear_scaling_divides_positions():
    scaled = dataclasses.replace(GEOMETRY, rope_scaling={"type": "linear", "factor": 2.0})
    torch.testing.assert_close(
        Rotary(scaled, CPU).factors(torch.tensor([6])), Rotary(GEOMETRY, CPU).factors(torch.tensor([3]))
    )


def test_scaling_that_depends_on_the_length_is_refused():
    dynamic = dataclasses.replace(GEOMETRY, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(ArtifactError, match="'dynamic'"):
        Rotary(dynamic, CPU)
