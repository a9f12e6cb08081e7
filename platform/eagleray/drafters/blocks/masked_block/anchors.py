"""Random anchors of training blocks.

Shapes: B batch rows, T positions, N anchors of all batch rows together.
"""

import torch
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.seeding import sample_generator


def choose_anchors(batch: TrainingBatch, num_anchors: int) -> tuple[Tensor, Tensor]:
    """Draw up to `num_anchors` anchors per sample, without replacement, ascending.

    A position can be an anchor when its token and the next one are supervised. A sample's draw depends on
    `batch.seed` and the sample alone, so it is the same however samples are split over rows and ranks.

    Returns:
        Batch row and position of each anchor, both int64 [N].
    """
    candidates_BT = batch.supervised_BT.clone()
    candidates_BT[:, :-1] &= batch.supervised_BT[:, 1:]
    chosen: list[Tensor] = []
    for row, start, end in batch.samples:
        # The last position of a sample has no next one.
        positions = candidates_BT[row, start : end - 1].nonzero().flatten() + start
        if len(positions) > num_anchors:
            order = torch.randperm(len(positions), generator=sample_generator(batch, row, start, "anchors"))
            positions = positions[order[:num_anchors].sort().values.to(positions.device)]
        chosen.append(positions)
    counts = torch.tensor([len(positions) for positions in chosen], device=batch.ids_BT.device)
    rows = torch.tensor([row for row, _, _ in batch.samples], device=batch.ids_BT.device)
    return rows.repeat_interleave(counts), torch.cat(chosen)
