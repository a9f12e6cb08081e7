"""Sums of an optimiser step over micro-batches and ranks, and the gradients they normalise.

Micro-batches leave gradients of plain loss sums. Dividing once, by the weight of the whole step over
all ranks, gives the same gradients however the step is split: one rank = several ranks = accumulated.
Shapes: K draft slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from eagleray.drafters.base import StepTerms
from eagleray.training.sharding import whole_of


@dataclass(frozen=True)
class StepTotals:
    """What a step added up to, over all ranks."""

    loss_sum: float
    weight_sum: float
    supervised_tokens: int
    stop_requests: int
    """Ranks that were asked to stop."""
    correct_K: tuple[int, ...]
    counted_K: tuple[int, ...]

    @property
    def loss(self) -> float:
        """Mean loss per unit of weight."""
        return self.loss_sum / self.weight_sum

    def accuracy(self) -> tuple[float, ...]:
        """Share of supervised predictions that are right, per draft slot."""
        return tuple(right / max(1, all_) for right, all_ in zip(self.correct_K, self.counted_K, strict=True))


def add_up(terms: Sequence[StepTerms], supervised_tokens: int, *, stop_requested: bool) -> StepTotals:
    """Sum the terms of this rank's micro-batches, and then those of all ranks, in one reduction."""
    slots = len(terms[0].correct_K)
    head = torch.stack([torch.stack([t.loss_sum.detach(), t.weight_sum]) for t in terms]).double().sum(0)
    counts = torch.stack([torch.cat([t.correct_K, t.counted_K]) for t in terms]).double().sum(0)
    flags = torch.tensor([supervised_tokens, stop_requested], dtype=torch.float64, device=head.device)
    summed = torch.cat([head, flags, counts])
    if dist.is_initialized():
        dist.all_reduce(summed)
    values = summed.tolist()
    numbers = [int(value) for value in values[2:]]
    return StepTotals(
        loss_sum=values[0],
        weight_sum=values[1],
        supervised_tokens=numbers[0],
        stop_requests=numbers[1],
        correct_K=tuple(numbers[2 : 2 + slots]),
        counted_K=tuple(numbers[2 + slots :]),
    )


def normalise_gradients(module: nn.Module, weight_sum: float, grad_clip: float) -> float:
    """Divide gradients by the step's weight, clip, and return their norm before clipping.

    Data-parallel wrappers average gradients over ranks; that is undone here, as losses are sums.
    """
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    gradients: list[Tensor] = [p.grad for p in module.parameters() if p.grad is not None]
    torch._foreach_mul_(gradients, ranks / weight_sum)
    return float(whole_of(nn.utils.clip_grad_norm_(module.parameters(), grad_clip)))
