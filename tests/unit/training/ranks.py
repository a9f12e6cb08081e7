"""Ranks of a test, as processes."""

import gc
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def as_rank(rank: int, ranks: int, root: Path, work: Callable[[], None]) -> None:
    """Do the work of one rank, in a process of its own, in a group that meets in a file in `root`.

    A data-parallel module holds on to its group and waits for ever if it is the last to let go of it. So what
    `work` makes must be gone when it returns.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{root}/rendezvous", rank=rank, world_size=ranks)
    work()
    gc.collect()
    dist.destroy_process_group()
