"""From samples to a training batch.

Shapes: B batch rows, T positions of the longest.
"""

from collections.abc import Sequence

import torch

from eagleray.corpus.sample import Sample
from eagleray.drafters.base import TrainingBatch
from eagleray.training.features import FeatureSource


def collate(
    samples: Sequence[Sample], source: FeatureSource, *, max_length: int, seed: int, device: torch.device
) -> TrainingBatch:
    """Cut to `max_length`, pad on the right, and fetch features.

    Supervision comes from the samples' spans and padding from their lengths; no id has a meaning here.
    """
    lengths = [min(len(sample.input_ids), max_length) for sample in samples]
    ids_BT = torch.zeros(len(samples), max(lengths), dtype=torch.int64)
    supervised_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for row, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
        ids_BT[row, :length] = torch.tensor(sample.input_ids[:length])
        for start, end in sample.supervised:
            supervised_BT[row, start : min(end, length)] = True
    ids_BT, lengths_B = ids_BT.to(device), torch.tensor(lengths, device=device)
    features_BTLD, final_BTD = source.features(samples, ids_BT, lengths_B)
    return TrainingBatch(
        ids_BT=ids_BT,
        lengths_B=lengths_B,
        supervised_BT=supervised_BT.to(device),
        features_BTLD=features_BTLD,
        final_BTD=final_BTD,
        seed=seed,
    )
