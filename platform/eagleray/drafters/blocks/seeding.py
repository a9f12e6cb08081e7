"""Random draws of a training step that do not depend on how its sequences are batched."""

import zlib

import torch

from eagleray.drafters.base import TrainingBatch


def row_generator(batch: TrainingBatch, row: int, purpose: str) -> torch.Generator:
    """A generator that `batch.seed`, the row's own ids and the purpose alone decide.

    A row draws the same in any batch and on any rank.
    """
    ids_T = batch.ids_BT[row, : int(batch.lengths_B[row])]
    weights_T = torch.arange(1, len(ids_T) + 1, device=ids_T.device)
    content = int((ids_T * weights_T).sum())
    seed = (batch.seed * 1_000_003 + content) * 1_000_003 + zlib.crc32(purpose.encode())
    return torch.Generator().manual_seed(seed % 2**63)
