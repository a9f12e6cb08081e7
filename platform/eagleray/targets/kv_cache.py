"""Keys and values of running sequences, one slot per row, grown as rows and lengths need.

Active rows lie in front, so a decode step reads a prefix view and gathers nothing. What a row
holds is told by its length alone: a rejected draft is dropped by not advancing the length, and
the next step writes over it.
Shapes: R rows, G key-value heads, S positions, N head width.
"""

import torch
from torch import Tensor

from eagleray.targets.geometry import TargetGeometry

ALIGNMENT = 16
"""Reads are cut at a multiple of this many positions. Softmax sums then run over whole vectors, and a
row's result does not depend on how long its neighbours are."""


class KVCache:
    """Slots for at most `max_rows` sequences of at most `max_length` positions. Starts without storage.

    Args:
        max_positions: Most positions of all rows together, as every row has the room of the longest. The
            caller lets no more sequences in than that. None: no bound but the two others.
    """

    def __init__(
        self,
        geometry: TargetGeometry,
        max_rows: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int | None = None,
    ):
        self.max_rows = max_rows
        self.max_positions = max_positions
        self.max_length = round_up(max_length)
        shape = (0, geometry.num_kv_heads, 0, geometry.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(geometry.num_layers)]
        """Of each layer, [R, G, S, N]."""
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(geometry.num_layers)]
        self.lengths = [0] * max_rows
        """Committed positions of each row, on the host: a step needs them before it can be launched."""
        self.allocations = 0
        """How often the storage was made anew, at other addresses."""

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `length` positions in each of the first `rows` rows. What is held stays."""
        have_rows, _, have_length, _ = self.keys[0].shape
        if rows <= have_rows and length <= have_length:
            return
        new_rows = next_size(have_rows, rows, self.max_rows)
        new_length = next_size(have_length, round_up(length), self.max_length)
        if self.max_positions is not None and new_rows * new_length > self.max_positions:
            new_rows = max(rows, *(row for row, held in enumerate(self.lengths, 1) if held), 1)
            new_length = min(self.max_positions // new_rows // ALIGNMENT * ALIGNMENT, self.max_length)
        self.allocations += 1
        # Layer by layer, so that only one of them is held twice.
        for tensors in (self.keys, self.values):
            for layer, storage in enumerate(tensors):
                tensors[layer] = resize(storage, new_rows, new_length)

    def fits(self, rows: int, length: int) -> bool:
        """Whether `reserve` can make room for more than the running sequences need, and lose nothing."""
        have_rows, _, have_length, _ = self.keys[0].shape
        if rows <= have_rows and length <= have_length:
            return True
        if rows > self.max_rows or length > self.max_length:
            return False
        last_held = max((row for row, held in enumerate(self.lengths, 1) if held), default=0)
        positions = max(rows, last_held) * round_up(max(length, *self.lengths))
        return self.max_positions is None or positions <= self.max_positions

    def read(self, row: int, start: int, end: int) -> Tensor:
        """A copy of what a row holds at some positions: keys and values of each layer [2, layers, G, S,
        N]."""
        return torch.stack(
            [
                torch.stack([storage[row, :, start:end] for storage in tensors])
                for tensors in (self.keys, self.values)
            ]
        )

    def append(self, row: int, held: Tensor) -> None:
        """Put what `read` returned after a row's length, and advance that."""
        start, end = self.lengths[row], self.lengths[row] + held.shape[3]
        self.reserve(row + 1, end)
        for tensors, copies in zip((self.keys, self.values), held, strict=True):
            for storage, copy in zip(tensors, copies, strict=True):
                storage[row, :, start:end] = copy
        self.lengths[row] = end

    def advance(self, row: int, positions: int) -> None:
        """Keep the next `positions` positions that a step wrote to a row."""
        self.lengths[row] += positions

    def compact(self, path_BA: Tensor) -> None:
        """Bring what a step wrote at places `path_BA` after the length of rows 0..B-1 to places 0..A-1.

        Places of a row ascend.
        """
        rows, places = path_BA.shape
        starts_B1 = torch.tensor(self.lengths[:rows], device=path_BA.device)[:, None]
        rows_B1 = torch.arange(rows, device=path_BA.device)[:, None]
        source_BA = starts_B1 + path_BA
        destination_BA = starts_B1 + torch.arange(places, device=path_BA.device)
        for tensor in (*self.keys, *self.values):
            tensor[rows_B1, :, destination_BA] = tensor[rows_B1, :, source_BA]

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


def next_size(have: int, need: int, bound: int) -> int:
    """What to grow to: at least double, so that copies stay few, but never past `bound`."""
    return have if need <= have else min(max(need, 2 * have), bound)


def resize(storage: Tensor, rows: int, length: int) -> Tensor:
    """A copy of [..., R, G, S, N] with other numbers of rows and positions.

    New ones are zeros, not garbage: a masked position enters sums with weight 0, and 0 * nan is nan.
    """
    *outer, have_rows, heads, have_length, width = storage.shape
    other = storage.new_zeros(*outer, rows, heads, length, width)
    rows, length = min(rows, have_rows), min(length, have_length)
    other[..., :rows, :, :length, :] = storage[..., :rows, :, :length, :]
    return other
