"""Our Muon is torch's, in float32, whoever computes it."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from eagleray.training.muon import (
    POLAR_EXPRESS,
    Muon,
    iterate,
    iterate_gram,
    orthogonalise,
    orthogonalise_all,
    share_out,
)
from eagleray.training.sharding import whole_of

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


def _orthogonalise_shared(rank: int, root: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{root}/rendezvous", rank=rank, world_size=2)
    matrices = [matrix.clone() for matrix in torch.load(root / "matrices.pt")]
    shared = orthogonalise_all(matrices, POLAR_EXPRESS[:5])
    mesh = init_device_mesh("cpu", (2,))
    sharded = [distribute_tensor(matrix, mesh, [Shard(0)]) for matrix in matrices]
    gathered = [whole_of(result) for result in orthogonalise_all(sharded, POLAR_EXPRESS[:5])]
    torch.save((shared, gathered), root / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.timeout(120)
def test_shared_out_over_ranks_every_rank_gets_what_one_rank_computes(tmp_path: Path) -> None:
    """Tall, wide and square, of each two, so that both ranks own and receive every kind.

    The last are sharded unevenly: into 3 and 2 rows, and into one row and none.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [(24, 8), (8, 24), (12, 12)] * 2 + [(5, 9), (1, 9)]
    matrices = [torch.randn(shape, generator=generator) for shape in shapes]
    torch.save(matrices, tmp_path / "matrices.pt")
    mp.start_processes(_orthogonalise_shared, args=(tmp_path,), nprocs=2, start_method="fork")
    for rank in range(2):
        for results in torch.load(tmp_path / f"{rank}.pt"):
            for matrix, result in zip(matrices, results, strict=True):
                expected = orthogonalise(matrix, POLAR_EXPRESS[:5])
                torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)
