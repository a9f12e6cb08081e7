"""Tensors of which every rank holds some rows (FSDP2's DTensors), and plain ones, in one vocabulary."""

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole_of(tensor: Tensor) -> Tensor:
    """The tensor with all its rows. A collective, if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def share_of(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's share of `whole`, placed as `like` is, without communication."""
    whole = whole.to(like.device)
    if isinstance(like, DTensor) and whole.shape == like.shape:
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return whole


def rows_of(rank: int, ranks: int, rows: int) -> tuple[int, int]:
    """First row, and the one after the last, that a rank holds of a matrix sharded by rows; maybe none."""
    height = -(-rows // ranks)
    return min(rank * height, rows), min((rank + 1) * height, rows)
