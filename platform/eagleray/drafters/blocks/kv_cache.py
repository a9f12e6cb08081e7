"""Keys and values of committed positions, with scratch room behind them for a draft; grown as needed.

A draft writes its own keys at the positions after the committed ones; the next commit writes over
them, so a rejected draft needs no undoing. Shapes: R rows, N written positions, Q queries of a row,
S cached positions, H query heads, G key/value heads, d width of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagleray.drafters.blocks.grouped import attend
from eagleray.drafters.blocks.layers import Dimensions
from eagleray.targets.kv_cache import next_size, resize


@dataclass(frozen=True)
class Visible:
    """Which cached positions each query sees: the first `longest`, less those that `mask_RQS` hides."""

    longest: int
    mask_RQS: Tensor | None = None
    """bool; None hides nothing."""

    @classmethod
    def first(cls, counts: Sequence[int], device: torch.device) -> "Visible":
        """All queries of a row see the row's first `counts` positions."""
        longest = max(counts)
        if min(counts) == longest:
            return cls(longest)
        bounds_R = torch.tensor(counts, device=device)
        return cls(longest, (torch.arange(longest, device=device) < bounds_R[:, None])[:, None])

    @classmethod
    def between(cls, first_RQ: Tensor, last_RQ: Tensor, longest: int) -> "Visible":
        """Each query sees positions `first_RQ` to `last_RQ`, both included."""
        positions_S = torch.arange(longest, device=last_RQ.device)
        mask_RQS = (positions_S >= first_RQ[..., None]) & (positions_S <= last_RQ[..., None])
        return cls(longest, mask_RQS)


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
        """Make room for the first positions of rows 0, 1, ..., and `scratch` more. What they hold stays.

        A wide tree may need more scratch than `capacity` foresees.
        """
        rows = max((row for row, length in enumerate(lengths, 1) if length), default=0)
        have_rows, have_positions = self.keys.shape[1], self.keys.shape[3]
        rows = next_size(have_rows, rows, self._bounds[0])
        needed = max(lengths) + scratch
        positions = next_size(have_positions, needed, max(needed, self._bounds[1]))
        if (rows, positions) != (have_rows, have_positions):
            self.keys = resize(self.keys, rows, positions)
            self.values = resize(self.values, rows, positions)

    def write(
        self, layer: int, rows_N: Tensor, positions_N: Tensor, keys_NGd: Tensor, values_NGd: Tensor
    ) -> None:
        """Place keys and values at (row, position)."""
        self.keys[layer][rows_N, :, positions_N] = keys_NGd
        self.values[layer][rows_N, :, positions_N] = values_NGd

    def write_all(self, rows_N: Tensor, positions_N: Tensor, keys_NLGd: Tensor, values_NLGd: Tensor) -> None:
        """Place keys and values of all L layers at (row, position)."""
        self.keys[:, rows_N, :, positions_N] = keys_NLGd
        self.values[:, rows_N, :, positions_N] = values_NLGd

    @torch.inference_mode()  # Like the drafting in which the storage was made.
    def move(self, source: int, destination: int) -> None:
        """Copy a row over another one. A row beyond the storage holds nothing."""
        if source >= self.keys.shape[1]:
            return
        self.keys[:, destination] = self.keys[:, source]
        self.values[:, destination] = self.values[:, source]

    def attend(
        self, layer: int, queries_RQHd: Tensor, visible: Visible, rows_R: Tensor | None = None
    ) -> Tensor:
        """Attend from some rows to what each query sees of its own row. Returns [R, Q, H * d].

        Args:
            rows_R: The rows of the queries. None: rows 0..R-1, without a copy.
        """
        rows = slice(len(queries_RQHd)) if rows_R is None else rows_R
        keys_RGSd = self.keys[layer, rows, :, : visible.longest]
        values_RGSd = self.values[layer, rows, :, : visible.longest]
        mask_RQS = visible.mask_RQS
        if mask_RQS is not None:
            mask_RQS = mask_RQS.expand(-1, queries_RQHd.shape[1], -1)
        return attend(queries_RQHd, keys_RGSd, values_RGSd, mask_RQS)
