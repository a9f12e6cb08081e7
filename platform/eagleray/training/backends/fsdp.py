"""`fsdp`: FSDP2. Every rank holds some rows of each parameter, of its gradient and of its optimiser state.

The drafter is one unit: it is called once per micro-batch, but its layers up to once per draft slot, and
gathering a layer each time would cost more than the little memory that it saves.
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

from eagleray.drafters.base import TrainableDrafter
from eagleray.training.backends.replicated import ReplicatedBackend
from eagleray.watchdog.heartbeat import Heartbeat


class ShardedBackend(ReplicatedBackend):
    """As replicated, except that parameters are DTensors: what follows from that is in `sharding.py`."""

    def _wrap(self, drafter: TrainableDrafter) -> nn.Module:
        device = next(drafter.parameters()).device
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        self._sharded: FSDPModule = fully_shard(drafter, mesh=mesh)
        self._sharded.set_custom_reduce_scatter(AnnouncedReduceScatter(self._heartbeat))
        return drafter

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        self._sharded.set_requires_gradient_sync(last)
        self._sharded.set_reshard_after_backward(last)
        # Otherwise the forward gathers them, where nobody can tell waiting from computing.
        self._heartbeat.enter_collective()
        self._sharded.unshard()
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def whole(self) -> Iterator[TrainableDrafter]:
        self._sharded.unshard()
        try:
            yield self.drafter
        finally:
            self._sharded.reshard()


class AnnouncedReduceScatter(DefaultReduceScatter):
    """The exchange of gradients, after telling the heartbeat that this rank has come to it."""

    def __init__(self, heartbeat: Heartbeat):
        self._heartbeat = heartbeat

    def __call__(self, *arguments: Any, **settings: Any) -> dist.Work:
        self._heartbeat.enter_collective()
        return super().__call__(*arguments, **settings)
