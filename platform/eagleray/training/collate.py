"""From rows to a training batch.

Shapes: B batch rows, T positions of the longest.
"""

from collections.abc import Sequence

import torch

from eagleray.drafters.base import TrainingBatch
from eagleray.training.features import FeatureSource
from eagleray.training.rows import TrainingRow


def collate(
    rows: Sequence[TrainingRow], source: FeatureSource, *, seed: int, device: torch.device
) -> TrainingBatch:
    """Pad on the right, and fetch features.

    Supervision comes from the rows' spans and padding from their lengths; no id has a meaning here.
    """
    lengths = [row.length for row in rows]
    ids_BT = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
    supervised_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids_BT[index, : row.length] = torch.tensor(row.sample.input_ids[row.start : row.end])
        for start, end in row.supervised:
            supervised_BT[index, start:end] = True
    features_BTLD, final_BTD = source.features(rows, device)
    return TrainingBatch(
        ids_BT=ids_BT.to(device),
        lengths_B=torch.tensor(lengths, device=device),
        supervised_BT=supervised_BT.to(device),
        features_BTLD=features_BTLD,
        final_BTD=final_BTD,
        seed=seed,
    )
