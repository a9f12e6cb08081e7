"""Which target ids the answers use, and how often: what a reduced draft vocabulary is chosen from."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagleray.corpus.sample import Sample


def supervised_counts(samples: Sequence[Sample], vocab_size: int) -> Tensor:
    """counts_V, int64: how often each target id occurs as a supervised token."""
    ids = [
        torch.tensor(sample.input_ids[start:end]) for sample in samples for start, end in sample.supervised
    ]
    return torch.bincount(torch.cat(ids), minlength=vocab_size)
