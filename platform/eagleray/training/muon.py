"""Muon in the parameter's own precision, its orthogonalisation shared out over ranks.

Each matrix moves along the nearest semi-orthogonal matrix of its momentum, so all directions of a
gradient count alike. torch.optim.Muon computes this in bfloat16, which CPUs without bfloat16 units
do slowly; here it is float32 matrix products, and a better polynomial. The costly part is done for
each matrix by one rank: whole matrices are broadcast from there, of sharded ones (FSDP2) the rows are
gathered there and every rank gets its own rows back.
"""

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from eagleray.training.sharding import rows_of

Polynomial = tuple[float, float, float]
"""(a, b, c) of X -> a X + b X X'X + c X X'X X'X, which acts on each singular value alone."""

POLAR_EXPRESS: tuple[Polynomial, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
)
"""Each is the best next step towards one for singular values from 0.001 to 1 (Amsel et al., 2025).

Five of them bring all such values within 13 % of one; five equal steps of the usual Muon polynomial
leave the small ones at a half.
"""


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised, for two-dimensional parameters.

    Args:
        lr: In AdamW's scale: an update has root mean square 0.2 times this, whatever the shape.
        weight_decay: Decoupled.
        polynomials: Steps of the iteration towards the semi-orthogonal matrix.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        polynomials: Sequence[Polynomial] = POLAR_EXPRESS[:5],
    ):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self.polynomials = tuple(polynomials)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            momenta = [self._momentum(param, group["momentum"]) for param in params]
            directions = orthogonalise_all(momenta, self.polynomials)
            for param, direction in zip(params, directions, strict=True):
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(direction, alpha=-group["lr"] * 0.2 * math.sqrt(max(param.shape)))

    def _momentum(self, param: nn.Parameter, decay: float) -> Tensor:
        """Nesterov momentum of a parameter, after taking in its gradient."""
        assert param.grad is not None
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        state["momentum"].lerp_(param.grad, 1 - decay)
        return param.grad.lerp(state["momentum"], decay)


def orthogonalise_all(matrices: list[Tensor], polynomials: Sequence[Polynomial]) -> list[Tensor]:
    """Orthogonalise each matrix; under torch.distributed every rank does its share.

    All get all of it, or of sharded matrices the rows that they hold.
    """
    if sharded := [matrix for matrix in matrices if isinstance(matrix, DTensor)]:
        return orthogonalise_sharded(sharded, polynomials)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [orthogonalise(matrix, polynomials) for matrix in matrices]
    owners = share_out([matrix.shape for matrix in matrices], dist.get_world_size())
    rank = dist.get_rank()
    # A broadcast sends memory as it lies, and the result of a tall matrix is a transposed view.
    results = [
        orthogonalise(matrix, polynomials).contiguous() if owner == rank else matrix.new_empty(matrix.shape)
        for matrix, owner in zip(matrices, owners, strict=True)
    ]
    pending = [
        dist.broadcast(result, src=owner, async_op=True)
        for result, owner in zip(results, owners, strict=True)
    ]
    for work in pending:
        work.wait()
    return results


def orthogonalise_sharded(matrices: list[DTensor], polynomials: Sequence[Polynomial]) -> list[Tensor]:
    """Gather each matrix at its owner, orthogonalise it there, and scatter its rows again.

    Args:
        matrices: Sharded by rows over all ranks.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    owners = share_out([matrix.shape for matrix in matrices], ranks)
    held = [matrix.to_local().contiguous() for matrix in matrices]
    owned = {
        index: held[index].new_empty(matrix.shape)
        for index, matrix in enumerate(matrices)
        if owners[index] == rank
    }
    _exchange(held, owned, owners, gather=True)
    directions = {index: orthogonalise(whole, polynomials).contiguous() for index, whole in owned.items()}
    results = [torch.empty_like(rows) for rows in held]
    _exchange(results, directions, owners, gather=False)
    return [
        DTensor.from_local(
            rows, matrix.device_mesh, matrix.placements, shape=matrix.shape, stride=matrix.stride()
        )
        for rows, matrix in zip(results, matrices, strict=True)
    ]


def _exchange(held: list[Tensor], owned: dict[int, Tensor], owners: list[int], *, gather: bool) -> None:
    """Move rows between the ranks that hold them and the owners of whole matrices.

    Every rank walks the matrices in the same order, so messages between two ranks match up.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    at_holder, at_owner = (dist.isend, dist.irecv) if gather else (dist.irecv, dist.isend)
    messages: list[dist.P2POp] = []
    for index, (rows, owner) in enumerate(zip(held, owners, strict=True)):
        if owner != rank:
            messages += [dist.P2POp(at_holder, rows, owner)] if rows.numel() else []
            continue
        for holder in range(ranks):
            first, last = rows_of(holder, ranks, len(owned[index]))
            part = owned[index][first:last]
            if holder == rank:
                (part if gather else rows).copy_(rows if gather else part)
            elif part.numel():
                messages.append(dist.P2POp(at_owner, part, holder))
    for work in dist.batch_isend_irecv(messages) if messages else []:
        work.wait()


def share_out(shapes: list[torch.Size], ranks: int) -> list[int]:
    """Assign matrices to ranks: the dearest first, each to the rank with the least work so far."""
    costs = [min(shape) ** 2 * (2 * max(shape) + min(shape)) for shape in shapes]
    load = [0] * ranks
    owners = [0] * len(shapes)
    for index in sorted(range(len(shapes)), key=lambda i: (-costs[i], i)):
        owners[index] = load.index(min(load))
        load[owners[index]] += costs[index]
    return owners


def orthogonalise(matrix: Tensor, polynomials: Sequence[Polynomial]) -> Tensor:
    """Iterate towards U V' of the singular value decomposition U S V'."""
    tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if tall else matrix
    # The margin keeps the largest singular value where every polynomial is tame, rounding included.
    wide = wide / (1.01 * wide.norm()).clamp(min=1e-7)
    oblong = wide.shape[1] > 1.5 * wide.shape[0]
    result = iterate_gram(wide, polynomials) if oblong else iterate(wide, polynomials)
    return result.T if tall else result


def iterate(wide: Tensor, polynomials: Sequence[Polynomial]) -> Tensor:
    """The iteration as it is written: X becomes P(X X') X, with P(G) = a + b G + c G G."""
    for a, b, c in polynomials:
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide


def iterate_gram(wide: Tensor, polynomials: Sequence[Polynomial]) -> Tensor:
    """The same on the small square X X' alone, which pays for oblong matrices.

    Every P is a polynomial of the first X X', so they commute: the next X X' is P (X X') P, and the
    result is the product of all P times the first X.
    """
    gram = wide @ wide.T
    product: Tensor | None = None
    for step, (a, b, c) in enumerate(polynomials, start=1):
        factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal().add_(a)
        product = factor if product is None else factor @ product
        if step < len(polynomials):
            gram = factor @ gram @ factor
    return wide if product is None else product @ wide
