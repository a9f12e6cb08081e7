"""Tells the heartbeat when this rank enters the exchange of gradients.

The exchange of the last bucket is where a rank waits for its peers; who has not come so far is whom they
wait for.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from eagleray.watchdog.heartbeat import Heartbeat


def announce_exchanges(module: DistributedDataParallel, heartbeat: Heartbeat) -> None:
    """Let every exchange of gradients announce itself first. The arithmetic is that of the wrapper's own."""
    module.register_comm_hook(heartbeat, _announced_mean)


def _announced_mean(heartbeat: Heartbeat, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    heartbeat.enter_collective()
    # The wrapper multiplies by the inverse, which differs from a division in the last bit.
    gradients = bucket.buffer().mul_(1.0 / dist.get_world_size())
    future = dist.all_reduce(gradients, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])
