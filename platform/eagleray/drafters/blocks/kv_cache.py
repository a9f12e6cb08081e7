"""Keys and values of committed positions, with scratch room behind them for a draft; grown as needed.

A draft writes its own keys at the positions after the committed ones; the next commit writes over
them, so a rejected draft needs no undoing. Shapes: R rows, N written positions, Q queries of a row,
S cached positions, H query heads, G key/value heads, d width of a head, X queries of a group.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.blocks.grouped import group_queries, ungroup_queries
from eagleray.drafters.blocks.layers import Dimensions
from eagleray.targets.kv_cache import enlarge, next_size


class DraftCache:
    """Keys and values of `layers` drafter layers for at most `rows` rows of at most `capacity` positions.

    Starts without storage; `reserve` before anything is written.
    """

    def __init__(self, like: Tensor, dimensions: Dimensions, *, layers: int, rows: int, capacity: int):
        self._bounds = rows, capacity
        shape = (layers, 0, dimensions.num_kv_heads, 0, dimensions.head_dim)
        self.keys = like.new_zeros(shape)
        self.values = like.new_zeros(shape)

    def reserve(self, lengths: Sequence[int], scratch: int = 0) -> None:
        """Make room for the first positions of rows 0, 1, ..., and `scratch` more. What they hold stays."""
        rows = max((row for row, length in enumerate(lengths, 1) if length), default=0)
        have_rows, have_positions = self.keys.shape[1], self.keys.shape[3]
        rows = next_size(have_rows, rows, self._bounds[0])
        positions = next_size(have_positions, max(lengths) + scratch, self._bounds[1])
        if (rows, positions) != (have_rows, have_positions):
            self.keys = enlarge(self.keys, rows, positions)
            self.values = enlarge(self.values, rows, positions)

    def write(
        self, layer: int, rows_N: Tensor, positions_N: Tensor, keys_NGd: Tensor, values_NGd: Tensor
    ) -> None:
        """Place keys and values at (row, position)."""
        self.keys[layer][rows_N, :, positions_N] = keys_NGd
        self.values[layer][rows_N, :, positions_N] = values_NGd

    @torch.inference_mode()  # Like the drafting in which the storage was made.
    def move(self, source: int, destination: int) -> None:
        """Copy a row over another one."""
        self.keys[:, destination] = self.keys[:, source]
        self.values[:, destination] = self.values[:, source]

    def attend(self, layer: int, queries_RQHd: Tensor, visible_R: Sequence[int]) -> Tensor:
        """Attend from rows 0..R-1 to each row's first `visible_R` positions. Returns [R, Q, H * d]."""
        rows, queries = queries_RQHd.shape[:2]
        longest = max(visible_R)
        keys_RGSd = self.keys[layer, :rows, :, :longest]
        values_RGSd = self.values[layer, :rows, :, :longest]
        mask = None
        if min(visible_R) < longest:
            bounds_R = torch.tensor(visible_R, device=queries_RQHd.device)
            mask = (torch.arange(longest, device=bounds_R.device) < bounds_R[:, None])[:, None, None, :]
        queries_RGXd = group_queries(queries_RQHd, keys_RGSd.shape[1])
        out_RGXd = F.scaled_dot_product_attention(queries_RGXd, keys_RGSd, values_RGSd, attn_mask=mask)
        return ungroup_queries(out_RGXd, queries)
