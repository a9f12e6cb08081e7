"""Newly committed positions of ragged rows, without their padding.

Shapes: B rows of a call, Q positions of the longest, N real positions, L tapped layers, D target width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagleray.drafters.base import Committed


@dataclass(frozen=True)
class Observed:
    """What one `observe` call brought."""

    features_NLD: Tensor
    final_ND: Tensor
    next_ids_N: Tensor
    rows_N: Tensor
    positions_N: Tensor
    grown_rows: list[int]
    """Session rows that got at least one position."""
    newest_index: list[int]
    """Index among the N of the newest position of each grown row."""

    @classmethod
    def unpad(cls, committed: Committed, lengths: list[int]) -> "Observed":
        """Drop the padding, number the positions after each row's length, and advance `lengths`."""
        rows: list[int] = []
        positions: list[int] = []
        index: list[int] = []
        grown: list[int] = []
        newest: list[int] = []
        width = committed.next_ids_BQ.shape[1]
        counts = zip(committed.rows_B.tolist(), committed.counts_B.tolist(), strict=True)
        for b, (row, count) in enumerate(counts):
            if count == 0:
                continue
            start = b * width
            index.extend(range(start, start + count))
            rows.extend([row] * count)
            positions.extend(range(lengths[row], lengths[row] + count))
            lengths[row] += count
            grown.append(row)
            newest.append(len(index) - 1)
        device = committed.next_ids_BQ.device
        index_N = torch.tensor(index, dtype=torch.int64, device=device)
        return cls(
            committed.features_BQLD.flatten(0, 1).index_select(0, index_N),
            committed.final_BQD.flatten(0, 1).index_select(0, index_N),
            committed.next_ids_BQ.flatten().index_select(0, index_N),
            torch.tensor(rows, dtype=torch.int64, device=device),
            torch.tensor(positions, dtype=torch.int64, device=device),
            grown,
            newest,
        )
