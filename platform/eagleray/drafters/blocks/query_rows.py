"""Rows of a training step that draft: row p stands for a live draft whose newest seen position is p.

The anchor is the token at p + 1, so slot k of the draft, counted from 0, is the token at p + 2 + k.
Shapes: B batch rows, T positions, N rows that draft, K draft slots.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.packing import Packing


@dataclass(frozen=True)
class QueryRows:
    """Rows that predict a supervised token at some draft step."""

    packing: Packing
    position_N: Tensor
    start_N: Tensor
    """Where the sample of each row begins."""
    supervised_NK: Tensor
    """Whether the token that row p predicts at step k, at position p + 2 + k, is of its sample and
    supervised."""

    @classmethod
    def select(cls, batch: TrainingBatch, steps: int) -> "QueryRows":
        """Find the rows, in batch order."""
        positions = batch.ids_BT.shape[1]
        padded = torch.nn.functional.pad(batch.supervised_BT, (0, steps + 1))
        supervised_BTK = padded[:, 2:].unfold(1, steps, 1)[:, :positions]
        label_TK = torch.arange(2, 2 + positions + steps, device=padded.device).unfold(0, steps, 1)[
            :positions
        ]
        supervised_BTK = supervised_BTK & (label_TK < batch.ends_BT[..., None])
        batch_N, position_N = supervised_BTK.any(-1).nonzero(as_tuple=True)
        packing = Packing.compacted(batch_N, len(batch.ids_BT))
        start_N = batch.starts_BT[batch_N, position_N]
        return cls(packing, position_N, start_N, supervised_BTK[batch_N, position_N])

    @property
    def place_N(self) -> Tensor:
        """Position of each row within its sample."""
        return self.position_N - self.start_N

    def following(self, ids_BT: Tensor, offset: int) -> Tensor:
        """The token `offset` positions after each row; any past its sample, where nothing is supervised."""
        index_N = (self.position_N + offset).clamp(max=ids_BT.shape[1] - 1)
        return ids_BT[self.packing.batch_N, index_N]
