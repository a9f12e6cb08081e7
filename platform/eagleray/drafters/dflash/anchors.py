"""Random anchors of DFlash blocks.

Shapes: B batch rows, T positions, N anchors of all batch rows together.
"""

import torch
from torch import Tensor

from eagleray.drafters.base import TrainingBatch


def choose_anchors(batch: TrainingBatch, num_anchors: int) -> tuple[Tensor, Tensor]:
    """Draw up to `num_anchors` anchors per row, without replacement, ascending.

    A position can be an anchor when its token and the next one are supervised. A row's draw depends on
    `batch.seed` and the row alone, so it is the same however sequences are split over batches and ranks.

    Returns:
        Batch row and position of each anchor, both int64 [N].
    """
    candidates_BT = batch.supervised_BT.clone()
    candidates_BT[:, :-1] &= batch.supervised_BT[:, 1:]
    candidates_BT[:, -1] = False
    chosen_B = []
    for row, candidates_T in enumerate(candidates_BT):
        positions = candidates_T.nonzero().flatten()
        if len(positions) > num_anchors:
            generator = torch.Generator().manual_seed(_row_seed(batch, row))
            order = torch.randperm(len(positions), generator=generator)[:num_anchors]
            positions = positions[order.sort().values.to(positions.device)]
        chosen_B.append(positions)
    counts_B = torch.tensor([len(positions) for positions in chosen_B], device=batch.ids_BT.device)
    rows_B = torch.arange(len(chosen_B), device=batch.ids_BT.device)
    return rows_B.repeat_interleave(counts_B), torch.cat(chosen_B)


def _row_seed(batch: TrainingBatch, row: int) -> int:
    ids_T = batch.ids_BT[row, : int(batch.lengths_B[row])]
    weights_T = torch.arange(1, len(ids_T) + 1, device=ids_T.device)
    return (batch.seed * 1_000_003 + int((ids_T * weights_T).sum())) % 2**63
