"""Drafting with DFlash: injected keys per committed position, then one forward over a block.

Shapes: B rows of a call, Q newly committed positions, N real ones of them, R drafting rows, K slots
of the block, L tapped layers, D target width.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.base import Committed, DraftSession
from eagleray.drafters.blocks.kv_cache import DraftCache
from eagleray.drafters.blocks.observed import Observed

if TYPE_CHECKING:
    from eagleray.drafters.dflash.model import DFlashDrafter


class DFlashSession(DraftSession):
    """Injected keys and values of committed positions, and each row's anchor."""

    def __init__(self, drafter: "DFlashDrafter", max_rows: int, max_length: int):
        self.drafter = drafter
        like = drafter.fc.weight
        capacity = max_length + drafter.config.block_size
        self.cache = DraftCache(
            like, drafter.dimensions, layers=len(drafter.layers), rows=max_rows, capacity=capacity
        )
        self.head_UD = drafter.target_head_UD()
        self.lengths = [0] * max_rows
        self.anchors_R = torch.zeros(max_rows, dtype=torch.int64, device=like.device)

    @torch.inference_mode()
    def observe(self, committed: Committed) -> None:
        """Store every layer's injected keys and values of the new positions, and the new anchors."""
        seen = Observed.unpad(committed, self.lengths)
        self.cache.reserve(self.lengths)
        fused_ND = self.drafter.fuse(seen.features_NLD)
        angles = self.drafter.rotary(seen.positions_N)
        for index, layer in enumerate(self.drafter.stack()):
            self.cache.write(
                index, seen.rows_N, seen.positions_N, *layer.self_attn.keys_values(fused_ND, angles)
            )
        self.anchors_R[seen.grown_rows] = seen.next_ids_N[seen.newest_index]

    @torch.inference_mode()
    def draft(self, num_rows: int, depth: int) -> Tensor:
        """Fill a block of `depth + 1` slots, the size at which engines run it."""
        drafter, size = self.drafter, depth + 1
        lengths = self.lengths[:num_rows]
        self.cache.reserve(lengths, scratch=size)
        rows_X = torch.arange(num_rows, device=self.anchors_R.device).repeat_interleave(size)
        starts_R1 = torch.tensor(lengths, device=rows_X.device)[:, None]
        positions_X = (starts_R1 + torch.arange(size, device=rows_X.device)).flatten()
        angles = drafter.rotary(positions_X)
        visible = [length + size for length in lengths]
        hidden_XD = drafter.embed(drafter.block_ids(self.anchors_R[:num_rows], size)).flatten(0, 1)
        for index, layer in enumerate(drafter.stack()):
            source_XD = layer.input_layernorm(hidden_XD)
            self.cache.write(index, rows_X, positions_X, *layer.self_attn.keys_values(source_XD, angles))
            queries = layer.self_attn.queries(source_XD, angles).unflatten(0, (num_rows, size))
            hidden_XD = layer.finish(hidden_XD, self.cache.attend(index, queries, visible).flatten(0, 1))
        predicting = hidden_XD.unflatten(0, (num_rows, size))[:, 1:]
        return drafter.to_target_ids(F.linear(drafter.norm(predicting), self.head_UD).argmax(-1))

    def reset(self, row: int) -> None:
        """Forget a row."""
        self.lengths[row] = 0

    def move(self, source: int, destination: int) -> None:
        """Copy a row over another one."""
        self.lengths[destination] = self.lengths[source]
        self.cache.move(source, destination)
        self.anchors_R[destination] = self.anchors_R[source]
