"""How the tokens of one forward see each other: two patterns behind one call.

Tokens of all rows lie on one axis, so the rest of a layer never meets padding. `PromptAttention`
runs whole sequences from their first token; `StepAttention` appends the same few tokens to every
active row of a cache.
Shapes: T tokens of all rows, B rows, Q new tokens of each row, S cache positions, H query heads,
G key-value heads, N head width.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.targets.kv_cache import KVCache, round_up


class Attention(Protocol):
    """Attention of one forward, called once per layer."""

    positions_T: Tensor
    """Position of each token in its row."""

    def __call__(self, layer: int, query_THN: Tensor, key_TGN: Tensor, value_TGN: Tensor) -> Tensor:
        """Returns [T, H * N]."""
        ...


class PromptAttention:
    """Causal attention within each of several sequences that lie one after another.

    Row by row instead of one padded batch: nothing is computed for padding, and a row's result does
    not depend on which rows it shares the forward with.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        device: torch.device,
        cache: KVCache | None = None,
        first_row: int = 0,
    ):
        self._spans = list(pairwise(accumulate(lengths, initial=0)))
        self._cache = cache
        self._first_row = first_row
        self.positions_T = torch.cat([torch.arange(length, device=device) for length in lengths])

    def __call__(self, layer: int, query_THN: Tensor, key_TGN: Tensor, value_TGN: Tensor) -> Tensor:
        """Attend, and store keys and values if there is a cache."""
        outputs = []
        for row, (start, end) in enumerate(self._spans, self._first_row):
            query, key, value = (
                tensor[start:end].transpose(0, 1) for tensor in (query_THN, key_TGN, value_TGN)
            )
            if self._cache is not None:
                self._cache.keys[layer][row, :, : end - start] = key
                self._cache.values[layer][row, :, : end - start] = value
            mixed_1HTN = F.scaled_dot_product_attention(
                query[None], key[None], value[None], is_causal=True, enable_gqa=True
            )
            outputs.append(mixed_1HTN[0].transpose(0, 1).flatten(1))
        return torch.cat(outputs)


class StepAttention:
    """Attention of Q new tokens of each of the first B cache rows, causal among the Q.

    Queries that share a key-value head are stacked on the query axis, so keys and values are read
    once and never expanded.

    Args:
        group: Query heads per key-value head.
    """

    def __init__(self, cache: KVCache, num_rows: int, num_queries: int, group: int, device: torch.device):
        self._cache = cache
        self._num_rows = num_rows
        self._num_queries = num_queries
        self._group = group
        lengths = cache.lengths[:num_rows]
        self._window = round_up(max(lengths) + num_queries)
        self._rows_B1 = torch.arange(num_rows, device=device)[:, None]
        self._positions_BQ = torch.tensor(lengths, device=device)[:, None] + torch.arange(
            num_queries, device=device
        )
        self.positions_T = self._positions_BQ.flatten()
        later_BQS = torch.arange(self._window, device=device) > self._positions_BQ[:, :, None]
        mask_BQS = torch.zeros(later_BQS.shape, dtype=cache.keys[0].dtype, device=device)
        mask_BQS.masked_fill_(later_BQS, float("-inf"))
        self._mask = mask_BQS.repeat_interleave(group, dim=1)[:, None]

    def __call__(self, layer: int, query_THN: Tensor, key_TGN: Tensor, value_TGN: Tensor) -> Tensor:
        """Store keys and values after each row's length, then attend."""
        rows, queries, group = self._num_rows, self._num_queries, self._group
        kv_heads, width = key_TGN.shape[1:]
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[self._rows_B1, :, self._positions_BQ] = key_TGN.view(rows, queries, kv_heads, width)
        values[self._rows_B1, :, self._positions_BQ] = value_TGN.view(rows, queries, kv_heads, width)
        stacked = query_THN.view(rows, queries, kv_heads, group, width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            stacked.reshape(rows, kv_heads, queries * group, width),
            keys[:rows, :, : self._window],
            values[:rows, :, : self._window],
            self._mask,
        )
        mixed = mixed.view(rows, kv_heads, queries, group, width).transpose(1, 2)
        return mixed.reshape(rows * queries, -1)
