"""From rows of samples to a training batch, in which several may share a row.

Shapes: B batch rows, T positions of the longest; S samples, M positions of the longest of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.training.features import FeatureSource
from eagleray.training.layout import fill_rows
from eagleray.training.rows import TrainingRow


def collate(
    rows: Sequence[TrainingRow],
    source: FeatureSource,
    *,
    seed: int,
    device: torch.device,
    row_tokens: int | None = None,
) -> TrainingBatch:
    """Pad on the right, and fetch features.

    Supervision comes from the rows' spans and padding from their lengths; no id has a meaning here.

    Args:
        row_tokens: Rows are laid one after the other into rows of at most so many tokens. None: each stays
            one.
    """
    shared = fill_rows([row.length for row in rows], row_tokens)
    packed = tuple(tuple(rows[index].length for index in sharing) for sharing in shared)
    lengths = [sum(each) for each in packed]
    ids_BT = torch.zeros(len(shared), max(lengths), dtype=torch.int64)
    supervised_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for batch_row, sharing in enumerate(shared):
        at = 0
        for row in (rows[index] for index in sharing):
            ids_BT[batch_row, at : at + row.length] = torch.tensor(row.sample.input_ids[row.start : row.end])
            for start, end in row.supervised:
                supervised_BT[batch_row, at + start : at + end] = True
            at += row.length
    features = source.features(rows, device)
    if row_tokens is not None:
        features = (lay_out(features[0], packed), lay_out(features[1], packed))
    return TrainingBatch(
        ids_BT=ids_BT.to(device),
        lengths_B=torch.tensor(lengths, device=device),
        supervised_BT=supervised_BT.to(device),
        features_BTLD=features[0],
        final_BTD=features[1],
        seed=seed,
        packed=None if row_tokens is None else packed,
    )


def lay_out(of_samples: Tensor, packed: Sequence[Sequence[int]]) -> Tensor:
    """From padded samples [S, M, ...], in order, to rows in which they stand one after the other [B, T, ...].

    Args:
        packed: Lengths of the samples of each row.
    """
    longest = max(map(sum, packed))
    laid_out = of_samples.new_zeros(len(packed), longest, *of_samples.shape[2:])
    samples = iter(of_samples)
    for row, lengths in enumerate(packed):
        at = 0
        for length in lengths:
            laid_out[row, at : at + length] = next(samples)[:length]
            at += length
    return laid_out
