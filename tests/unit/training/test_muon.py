"""Our Muon is torch's, in float32, whoever computes it."""

import pytest
import torch
from torch import nn

from eagleray.training.muon import POLAR_EXPRESS, Muon, iterate, iterate_gram, orthogonalise, share_out

TORCH = ((3.4445, -4.7750, 2.0315),) * 5


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
def test_updates_with_the_polynomial_of_torch_equal_those_of_torch_within_bfloat16(
    shape: tuple[int, int],
) -> None:
    torch.manual_seed(0)
    start = torch.randn(shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = [
        Muon([ours], lr=0.1, weight_decay=0.05, polynomials=TORCH),
        torch.optim.Muon([theirs], lr=0.1, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
    ]
    for _ in range(3):
        gradient = torch.randn(shape)
        for parameter, optimizer in zip([ours, theirs], optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    moved, expected = ours.detach() - start, theirs.detach() - start
    assert float((moved - expected).norm() / expected.norm()) < 0.02


def test_the_direction_has_the_singular_vectors_of_the_momentum_and_even_singular_values() -> None:
    torch.manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(8, 8))
    right, _ = torch.linalg.qr(torch.randn(20, 8))
    matrix = left @ torch.diag(torch.logspace(0, -2, 8)) @ right.T
    inner = left.T @ orthogonalise(matrix, POLAR_EXPRESS[:5]) @ right
    assert float((inner - torch.diag(inner.diagonal())).abs().max()) < 1e-4
    assert 0.87 < float(inner.diagonal().min()) <= float(inner.diagonal().max()) < 1.13


@pytest.mark.parametrize("iterations", [1, 3, 5])
def test_iterating_on_the_gram_matrix_equals_the_plain_iteration(iterations: int) -> None:
    torch.manual_seed(0)
    wide = torch.randn(30, 80) @ torch.diag(torch.logspace(0, -3, 80))
    wide /= wide.norm()
    plain = iterate(wide, POLAR_EXPRESS[:iterations])
    torch.testing.assert_close(iterate_gram(wide, POLAR_EXPRESS[:iterations]), plain, atol=1e-4, rtol=1e-3)


def test_the_scale_of_a_gradient_does_not_matter() -> None:
    matrix = torch.randn(6, 9)
    torch.testing.assert_close(orthogonalise(matrix, TORCH), orthogonalise(1000 * matrix, TORCH))


def test_every_matrix_has_an_owner_and_the_dear_ones_are_spread() -> None:
    shapes = [torch.Size(s) for s in [(100, 100), (10, 10), (100, 100), (10, 10), (10, 10)]]
    owners = share_out(shapes, 2)
    assert owners[0] != owners[2]
    assert set(owners) == {0, 1}
    assert share_out(shapes, 1) == [0] * 5
