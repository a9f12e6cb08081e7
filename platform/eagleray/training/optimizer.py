"""Which parameter is updated how: Muon for the matrices of layers, AdamW for everything else."""

from typing import Any

import torch
from torch import nn

from eagleray.drafters.base import TrainableDrafter
from eagleray.training.config import TrainingConfig
from eagleray.training.muon import POLAR_EXPRESS, Muon


class DrafterOptimizer:
    """One or two optimisers that step together, each with its own peak learning rate."""

    def __init__(self, drafter: TrainableDrafter, config: TrainingConfig):
        matrices, others = _split(drafter)
        if config.optimizer == "adamw":
            adamw = _adamw(matrices + others, config.learning_rate, config.weight_decay)
            self._optimizers: list[torch.optim.Optimizer] = [adamw]
        else:
            muon = Muon(
                matrices,
                config.learning_rate,
                weight_decay=config.weight_decay,
                polynomials=POLAR_EXPRESS[: config.muon_iterations],
            )
            self._optimizers = [muon, _adamw(others, config.adam_learning_rate, 0.0)]
        self._peaks = [group["lr"] for group in self._groups()]

    def step(self, rate_factor: float) -> None:
        """Update with each peak learning rate times `rate_factor`, then drop the gradients."""
        for group, peak in zip(self._groups(), self._peaks, strict=True):
            group["lr"] = peak * rate_factor
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """State of each optimiser."""
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Continue from `state_dict`."""
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]


def _split(drafter: TrainableDrafter) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in drafter.named_parameters():
        if parameter.requires_grad:
            is_layer_matrix = parameter.ndim == 2 and drafter.token_matrices.isdisjoint(name.split("."))
            (matrices if is_layer_matrix else others).append(parameter)
    return matrices, others


def _adamw(parameters: list[nn.Parameter], rate: float, weight_decay: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=weight_decay)
