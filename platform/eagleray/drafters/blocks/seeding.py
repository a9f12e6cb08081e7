"""Random draws of a training step that do not depend on how its sequences are batched."""

import zlib

import torch

from eagleray.drafters.base import TrainingBatch


def sample_generator(batch: TrainingBatch, row: int, start: int, purpose: str) -> torch.Generator:
    """A generator that `batch.seed`, the ids of the sample at `start` and the purpose alone decide.

    A sample draws the same in any batch, on any rank, and whatever it shares a row with.
    """
    ids_T = batch.ids_BT[row, start : int(batch.ends_BT[row, start])]
    weights_T = torch.arange(1, len(ids_T) + 1, device=ids_T.device)
    content = int((ids_T * weights_T).sum())
    seed = (batch.seed * 1_000_003 + content) * 1_000_003 + zlib.crc32(purpose.encode())
    return torch.Generator().manual_seed(seed % 2**63)
