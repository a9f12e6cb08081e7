"""What the loop asks of a backend: how ranks share a drafter's parameters, gradients and optimiser state.

A backend decides where numbers lie and never what is learned: with any of them, and any number of ranks,
a step gives the same weights to rounding. What it saves is whole tensors by parameter name, so a run may
go on with another backend and another number of ranks.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from torch import Tensor, nn

from eagleray.drafters.base import TrainableDrafter
from eagleray.training.optimizer import OptimizerState

Weights = dict[str, Tensor]
"""Parameter or buffer name -> whole tensor on the CPU."""


class Backend(ABC):
    """One rank's side of the sharing. All ranks call the same methods in the same order."""

    drafter: TrainableDrafter
    """Its parameters may be shares; `whole` gives one that can draft."""

    module: nn.Module
    """What is called with a batch: the drafter, or a wrapper of it."""

    @abstractmethod
    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch; gradients of all ranks meet in a step's last one."""

    @abstractmethod
    def backward(self, loss_sum: Tensor) -> None:
        """Add the gradients of a micro-batch."""

    @abstractmethod
    def update(self, weight_sum: float, rate_factor: float) -> float:
        """Divide the gradients by the step's weight, clip them, and update the drafter.

        Args:
            weight_sum: Over all micro-batches and ranks; losses are sums.
            rate_factor: Share of the peak learning rate.

        Returns:
            Norm of the gradient before clipping.
        """

    @abstractmethod
    def whole(self) -> AbstractContextManager[TrainableDrafter]:
        """A drafter with all weights as they are now, for each rank to draft with alone. A collective."""

    @abstractmethod
    def weights(self) -> Weights:
        """The drafter's state dict, whole, on the CPU."""

    @abstractmethod
    def optimizer_state(self) -> OptimizerState:
        """The optimiser's memory, whole, on the CPU."""

    @abstractmethod
    def load(self, weights: Weights, optimizer: OptimizerState | None) -> None:
        """Take in what `weights` and `optimizer_state` gave on every rank; None: a fresh optimiser stays."""
