"""Drafting with Medusa: all heads at once, from the newest state alone.

Shapes: R rows, D target width, K draft slots.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eagleray.drafters.base import Committed, DraftSession
from eagleray.drafters.blocks.observed import Observed

if TYPE_CHECKING:
    from eagleray.drafters.medusa.model import MedusaDrafter


class MedusaSession(DraftSession):
    """The last hidden state of each row's newest position."""

    def __init__(self, drafter: "MedusaDrafter", max_rows: int):
        self.drafter = drafter
        like, width = next(drafter.parameters()), drafter.heads.geometry.hidden_size
        self.lengths = [0] * max_rows
        self.final_RD = like.new_zeros(max_rows, width)

    @torch.inference_mode()
    def observe(self, committed: Committed) -> None:
        """Remember the newest state of each row that grew."""
        seen = Observed.unpad(committed, self.lengths)
        self.final_RD[seen.grown_rows] = self.drafter.widen(seen.final_ND[seen.newest_index])

    @torch.inference_mode()
    def draft(self, num_rows: int, depth: int) -> Tensor:
        """Each head's best token."""
        final_RD = self.final_RD[:num_rows]
        best = [self.drafter.score(head, final_RD).argmax(-1) for head in range(depth)]
        return self.drafter.to_target_ids(torch.stack(best, 1))

    def reset(self, row: int) -> None:
        """Forget a row."""
        self.lengths[row] = 0

    def move(self, source: int, destination: int) -> None:
        """Copy a row over another one."""
        self.lengths[destination] = self.lengths[source]
        self.final_RD[destination] = self.final_RD[source]
