"""Which parameter is updated how: Muon for the matrices of layers, AdamW for everything else."""

from typing import Any

import torch
from torch import Tensor, nn

from eagleray.drafters.base import TrainableDrafter
from eagleray.training.config import TrainingConfig
from eagleray.training.muon import POLAR_EXPRESS, Muon
from eagleray.training.sharding import share_of, whole_of

OptimizerState = dict[str, dict[str, Tensor]]
"""Parameter name -> name of the state -> its whole tensor, on the CPU: the same whatever the ranks and the
backend that wrote it."""


class DrafterOptimizer:
    """One or two optimisers that step together, each with its own peak learning rate."""

    def __init__(self, drafter: TrainableDrafter, config: TrainingConfig):
        self._names: dict[Tensor, str] = {p: name for name, p in drafter.named_parameters()}
        matrices, others = split_parameters(drafter)
        if config.optimizer == "adamw":
            self._optimizers: list[torch.optim.Optimizer] = [
                adamw(matrices + others, config.learning_rate, config.weight_decay)
            ]
        else:
            muon = Muon(
                matrices,
                config.learning_rate,
                weight_decay=config.weight_decay,
                polynomials=POLAR_EXPRESS[: config.muon_iterations],
            )
            self._optimizers = [muon, adamw(others, config.adam_learning_rate, 0.0)]
        self._peaks = [group["lr"] for group in self._groups()]

    def step(self, rate_factor: float) -> None:
        """Update with each peak learning rate times `rate_factor`, then drop the gradients."""
        for group, peak in zip(self._groups(), self._peaks, strict=True):
            group["lr"] = peak * rate_factor
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> OptimizerState:
        """What the optimisers remember. A collective, if parameters are sharded."""
        return {
            self._names[parameter]: {key: whole_of(value).cpu() for key, value in remembered.items()}
            for optimizer in self._optimizers
            for parameter, remembered in optimizer.state.items()
        }

    def load_state(self, state: OptimizerState) -> None:
        """Continue from `state`."""
        for optimizer in self._optimizers:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                remembered = state.get(self._names[parameter], {})
                optimizer.state[parameter] = {
                    # AdamW counts steps on the CPU, whatever the device.
                    key: value.clone() if value.ndim == 0 else share_of(value.clone(), parameter)
                    for key, value in remembered.items()
                }

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]


def split_parameters(drafter: TrainableDrafter) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable matrices whose rows an update may mix, and all other trainable parameters."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in drafter.named_parameters():
        if parameter.requires_grad:
            is_layer_matrix = parameter.ndim == 2 and drafter.token_matrices.isdisjoint(name.split("."))
            (matrices if is_layer_matrix else others).append(parameter)
    return matrices, others


def adamw(parameters: list[nn.Parameter], rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW for all parameters alike, with the decay rates of its moments that all drafters here take."""
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=weight_decay)
