"""The step of a training in the loop that anybody would write: ranks as processes, torch and nothing else.

No Ray, no watchdog, no heartbeats, no checkpoints, no log. Drafter, samples, batches, features and optimiser
are those of the platform, so that what differs is what runs them.
"""

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from eagleray.files import write_json_atomically

if TYPE_CHECKING:
    from eagleray.cluster.train_work import TrainWork


def train_bare(work: "TrainWork", steps: int, folder: Path) -> list[float]:
    """Seconds of each step on the first rank."""
    import json

    import torch.multiprocessing as mp

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rendezvous").unlink(missing_ok=True)
    mp.spawn(run_rank, args=(work, steps, folder), nprocs=work.training.workers)
    seconds: list[float] = json.loads((folder / "seconds.json").read_text(encoding="utf-8"))
    return seconds


def run_rank(rank: int, work: "TrainWork", steps: int, folder: Path) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    ranks = work.training.workers
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    seconds = take_steps(work, steps)
    if rank == 0:
        write_json_atomically(folder / "seconds.json", seconds)
    dist.destroy_process_group()


def take_steps(work: "TrainWork", steps: int) -> list[float]:
    """Train; returns the seconds of each step."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from eagleray.cluster.streaming import plan_batches
    from eagleray.cluster.train import open_features
    from eagleray.drafters.catalog import build_trainable_drafter
    from eagleray.training.collate import collate
    from eagleray.training.optimizer import DrafterOptimizer
    from eagleray.training.schedule import rate_factor
    from eagleray.training.vocabulary import supervised_counts

    config, rank, ranks = work.training, dist.get_rank(), dist.get_world_size()
    source, heads = open_features(work)
    rows, plan = plan_batches(work)
    torch.manual_seed(config.seed)
    counts_V = supervised_counts(work.split()[0], heads.geometry.vocab_size)
    drafter = build_trainable_drafter(work.drafter, heads, counts_V)
    module = DistributedDataParallel(drafter, broadcast_buffers=False) if ranks > 1 else drafter
    optimizer = DrafterOptimizer(drafter, config)
    seconds = []
    for step in range(steps):
        began_s = time.perf_counter()
        weight, size = torch.zeros(()), config.micro_batch_size
        shares = plan.micro_batches(step, rank=rank, ranks=ranks, micro_batch_size=size)
        for number, share in enumerate(shares, start=1):
            chosen = [rows[index] for index in share]
            batch = collate(chosen, source, seed=config.seed * 1_000_003 + step, device=torch.device("cpu"))
            exchange: AbstractContextManager[None] = nullcontext()
            if isinstance(module, DistributedDataParallel) and number < len(shares):
                exchange = module.no_sync()
            with exchange:
                terms = module(batch)
                terms.loss_sum.backward()
            weight += terms.weight_sum
        dist.all_reduce(weight)
        for parameter in drafter.parameters():
            if parameter.grad is not None:
                parameter.grad *= ranks / weight
        nn.utils.clip_grad_norm_(drafter.parameters(), config.grad_clip)
        optimizer.step(rate_factor(step, steps, config))
        seconds.append(time.perf_counter() - began_s)
    return seconds
