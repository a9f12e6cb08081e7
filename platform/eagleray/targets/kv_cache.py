"""Keys and values of running sequences, one slot per row, allocated once.

Active rows lie in front, so a decode step reads a prefix view and gathers nothing. What a row
holds is told by its length alone: a rejected draft is dropped by not advancing the length, and
the next step writes over it.
Shapes: R rows, G key-value heads, S positions, N head width.
"""

import torch

from eagleray.targets.geometry import TargetGeometry

ALIGNMENT = 16
"""Reads are cut at a multiple of this many positions. Softmax sums then run over whole vectors, and a
row's result does not depend on how long its neighbours are."""


class KVCache:
    """Slots for `max_rows` sequences of at most `max_length` positions."""

    def __init__(
        self,
        geometry: TargetGeometry,
        max_rows: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.max_rows = max_rows
        self.max_length = round_up(max_length)
        shape = (max_rows, geometry.num_kv_heads, self.max_length, geometry.head_dim)
        # Zeros, not garbage: a masked position still enters sums with weight 0, and 0 * nan is nan.
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(geometry.num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(geometry.num_layers)]
        self.lengths = [0] * max_rows
        """Committed positions of each row, on the host: a step needs them before it can be launched."""

    def advance(self, row: int, positions: int) -> None:
        """Keep the next `positions` positions that a step wrote to a row."""
        self.lengths[row] += positions

    def move(self, source: int, destination: int) -> None:
        """Move the sequence of row `source` over row `destination`; `source` becomes empty."""
        length = self.lengths[source]
        for tensor in (*self.keys, *self.values):
            tensor[destination, :, :length] = tensor[source, :, :length]
        self.lengths[destination] = length
        self.lengths[source] = 0

    def reset(self, row: int) -> None:
        """Forget the sequence of a row."""
        self.lengths[row] = 0


def round_up(positions: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-positions // ALIGNMENT) * ALIGNMENT
