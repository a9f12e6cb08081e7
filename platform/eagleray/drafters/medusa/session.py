"""Drafting with Medusa: all heads at once, from the newest state alone.

Shapes: R rows, D target width, K draft slots, U draft vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eagleray.drafters.base import Committed, DraftSession, DrawnDraft
from eagleray.drafters.blocks.drawer import Drawer
from eagleray.drafters.blocks.observed import Observed
from eagleray.speculation.config import SamplingConfig

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
        return self.drafter.to_target_ids(self._scores(num_rows, depth).argmax(-1))

    @torch.inference_mode()
    def draw(
        self, num_rows: int, depth: int, samplings: Sequence[SamplingConfig], uniforms_RK: Tensor
    ) -> DrawnDraft:
        """A token of each head by itself."""
        drawer = Drawer(samplings, uniforms_RK)
        ids_RK = self.drafter.to_target_ids(drawer(self._scores(num_rows, depth)))
        return drawer.draft(ids_RK, self.drafter)

    def _scores(self, num_rows: int, depth: int) -> Tensor:
        """[R, K, U]."""
        final_RD = self.final_RD[:num_rows]
        return torch.stack([self.drafter.score(head, final_RD) for head in range(depth)], 1)

    def reset(self, row: int) -> None:
        """Forget a row."""
        self.lengths[row] = 0

    def move(self, source: int, destination: int) -> None:
        """Copy a row over another one."""
        self.lengths[destination] = self.lengths[source]
        self.final_RD[destination] = self.final_RD[source]
