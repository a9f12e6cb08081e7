"""Random anchors of training blocks.

Shapes: B batch rows, T positions, N anchors of all batch rows together.
"""

import torch
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.seeding import row_generator


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
            order = torch.randperm(len(positions), generator=row_generator(batch, row, "anchors"))
            positions = positions[order[:num_anchors].sort().values.to(positions.device)]
        chosen_B.append(positions)
    counts_B = torch.tensor([len(positions) for positions in chosen_B], device=batch.ids_BT.device)
    rows_B = torch.arange(len(chosen_B), device=batch.ids_BT.device)
    return rows_B.repeat_interleave(counts_B), torch.cat(chosen_B)
