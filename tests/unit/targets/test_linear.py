"""The packed product and its plain twin."""

import pytest
import torch
import torch.nn.functional as F

from eagleray.targets.linear import FrozenLinear

SHAPES = [(96, 64), (30, 50), (64, 1536)]


def random_layer(shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator) * 0.05, torch.randn(shape[0], generator=generator)


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_it_equals_the_plain_twin(shape, rows, batch_invariant):
    weight_OI, bias_O = random_layer(shape)
    x_NI = torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(2))
    linear = FrozenLinear(weight_OI, bias_O, batch_invariant=batch_invariant)
    torch.testing.assert_close(linear(x_NI), F.linear(x_NI, weight_OI, bias_O), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_beside_any_number_of_others(shape, batch_invariant):
    linear = FrozenLinear(*random_layer(shape), batch_invariant=batch_invariant)
    x_NI = torch.randn(40, shape[1], generator=torch.Generator().manual_seed(2))
    everything = linear(x_NI)
    for rows in (1, 2, 3, 6, 16, 33) if batch_invariant else (3, 6, 16, 33):
        assert torch.equal(linear(x_NI[:rows]), everything[:rows])


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_coarse_numbers_take_the_plain_twin(batch_invariant):
    weight_OI, bias_O = (tensor.bfloat16() for tensor in random_layer((96, 64)))
    x_NI = torch.ones(3, 64, dtype=torch.bfloat16)
    linear = FrozenLinear(weight_OI, bias_O, batch_invariant=batch_invariant)
    assert torch.equal(linear(x_NI), F.linear(x_NI, weight_OI, bias_O))
