"""`ddp`: every rank holds the whole drafter, and gradients are averaged while they are computed."""

import contextlib
from contextlib import AbstractContextManager

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from eagleray.drafters.base import TrainableDrafter
from eagleray.training.backends.base import Backend, Weights
from eagleray.training.config import TrainingConfig
from eagleray.training.exchanges import announce_exchanges
from eagleray.training.optimizer import DrafterOptimizer, OptimizerState
from eagleray.training.sharding import share_of, whole_of
from eagleray.training.totals import normalise_gradients
from eagleray.watchdog.heartbeat import Heartbeat


class ReplicatedBackend(Backend):
    """Whole drafters; one rank needs no wrapper."""

    def __init__(self, drafter: TrainableDrafter, config: TrainingConfig, heartbeat: Heartbeat):
        self.drafter = drafter
        self._heartbeat = heartbeat
        self.module = self._wrap(drafter)
        self._optimizer = DrafterOptimizer(drafter, config)
        self._grad_clip = config.grad_clip

    def _wrap(self, drafter: TrainableDrafter) -> nn.Module:
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return drafter
        # Buffers are constants, equal on all ranks. Sending them in every forward would be an exchange in
        # which a rank waits for its peers before anyone can tell that it waits.
        module = DistributedDataParallel(drafter, broadcast_buffers=False)
        announce_exchanges(module, self._heartbeat)
        return module

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        if last or not isinstance(self.module, DistributedDataParallel):
            return contextlib.nullcontext()
        skipping: AbstractContextManager[None] = self.module.no_sync()
        return skipping

    def backward(self, loss_sum: Tensor) -> None:
        loss_sum.backward()

    def update(self, weight_sum: float, rate_factor: float) -> float:
        grad_norm = normalise_gradients(self.drafter, weight_sum, self._grad_clip)
        self._optimizer.step(rate_factor)
        return grad_norm

    def whole(self) -> AbstractContextManager[TrainableDrafter]:
        return contextlib.nullcontext(self.drafter)

    def weights(self) -> Weights:
        return {name: whole_of(tensor).detach().cpu() for name, tensor in self.drafter.state_dict().items()}

    def optimizer_state(self) -> OptimizerState:
        return self._optimizer.state()

    def load(self, weights: Weights, optimizer: OptimizerState | None) -> None:
        placed = {
            name: share_of(weights[name], current) if name in weights else current
            for name, current in self.drafter.state_dict().items()
        }
        self.drafter.load_state_dict(weights | placed)
        if optimizer is not None:
            self._optimizer.load_state(optimizer)
