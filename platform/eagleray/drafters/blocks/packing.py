"""Between packed rows and padded ones: linear layers run on the former, attention on the latter.

Shapes: B batch rows, A slots of the longest row, N real rows of all batch rows together.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where each of N packed rows lies in a padded [B, A] layout."""

    batch_N: Tensor
    slot_N: Tensor
    batch: int
    width: int

    @classmethod
    def in_place(cls, mask_BA: Tensor) -> "Packing":
        """Pack the true entries; padding puts each back where it was."""
        batch_N, slot_N = mask_BA.nonzero(as_tuple=True)
        return cls(batch_N, slot_N, mask_BA.shape[0], mask_BA.shape[1])

    @classmethod
    def compacted(cls, batch_N: Tensor, batch: int) -> "Packing":
        """Rows in batch order; padding moves the rows of each batch row to its front."""
        counts_B = torch.bincount(batch_N, minlength=batch)
        starts_B = counts_B.cumsum(0) - counts_B
        slot_N = torch.arange(len(batch_N), device=batch_N.device) - starts_B[batch_N]
        return cls(batch_N, slot_N, batch, max(1, int(counts_B.max())))

    def pad(self, rows: Tensor) -> Tensor:
        """[N, ...] to [B, A, ...], zeros where there is no row."""
        shape = (self.batch, self.width, *rows.shape[1:])
        if len(rows) == self.batch * self.width:
            return rows.view(shape)
        padded = rows.new_zeros(self.batch * self.width, *rows.shape[1:])
        return padded.index_copy(0, self._flat_N, rows).view(shape)

    def pack(self, padded: Tensor) -> Tensor:
        """[B, A, ...] to [N, ...]."""
        flat = padded.flatten(0, 1)
        return flat if len(self.batch_N) == len(flat) else flat.index_select(0, self._flat_N)

    @property
    def _flat_N(self) -> Tensor:
        return self.batch_N * self.width + self.slot_N
