"""The packed product and its plain twin."""

import pytest
import torch

from eagleray.targets.linear import FrozenLinear

SHAPES = [(96, 64), (30, 50), (64, 1536)]


def random_layer(shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator) * 0.05, torch.randn(shape[0], generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_packed_equals_plain(shape, rows):
    weight_OI, bias_O = random_layer(shape)
    x_NI = torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(2))
    packed, plain = FrozenLinear(weight_OI, bias_O), FrozenLinear(weight_OI, bias_O, pack=False)
    assert packed.packed
    assert not plain.packed
    torch.testing.assert_close(packed(x_NI), plain(x_NI), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_beside_any_number_of_others(shape):
    linear = FrozenLinear(*random_layer(shape))
    x_NI = torch.randn(40, shape[1], generator=torch.Generator().manual_seed(2))
    everything = linear(x_NI)
    for rows in (1, 2, 3, 6, 16, 33):
        assert torch.equal(linear(x_NI[:rows]), everything[:rows])


def test_other_numbers_take_the_plain_twin():
    weight_OI, _ = random_layer((96, 64))
    assert not FrozenLinear(weight_OI.bfloat16()).packed
