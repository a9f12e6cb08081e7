"""Which target ids the answers use, and how often: what a reduced draft vocabulary is chosen from."""

from collections.abc import Iterable

import torch
from torch import Tensor

from eagleray.corpus.sample import Sample


def supervised_counts(samples: Iterable[Sample], vocab_size: int) -> Tensor:
    """counts_V, int64: how often each target id occurs as a supervised token."""
    counts_V = torch.zeros(vocab_size, dtype=torch.int64)
    for sample in samples:
        for start, end in sample.supervised:
            ids = torch.tensor(sample.input_ids[start:end])
            counts_V.index_add_(0, ids, torch.ones_like(ids))
    return counts_V
