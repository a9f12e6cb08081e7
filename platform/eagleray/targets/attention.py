"""How the tokens of one forward see each other: whole prompts, or what follows a cache, behind one call.

Tokens of all rows lie on one axis, so the rest of a layer never meets padding. `PromptAttention`
runs whole sequences, or long pieces of them; `StepAttention` appends the same few tokens to every
active row of a cache, `TreeAttention` the nodes of a draft tree.
Shapes: T tokens of all rows, B rows, Q new tokens of each row, S cache positions, H query heads,
G key-value heads, N head width.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.speculation.trees import depths, paths
from eagleray.targets.kernels import step
from eagleray.targets.kv_cache import KVCache, round_up

PROMPT_BLOCK = 64
"""Positions of a prompt that attend together on a CPU. A prompt that is cut at multiples of it gives the bits
of the whole one."""


class Attention(Protocol):
    """Attention of one forward, called once per layer."""

    positions_T: Tensor
    """Position of each token in its row."""

    def __call__(self, layer: int, query_THN: Tensor, key_TGN: Tensor, value_TGN: Tensor) -> Tensor:
        """Returns [T, H * N]."""
        ...


class PromptAttention:
    """Causal attention within each of several sequences that lie one after another, or within their next
    pieces.

    Row by row instead of one padded batch: nothing is computed for padding, and a row's result does
    not depend on which rows it shares the forward with. On a CPU a row attends in blocks of `PROMPT_BLOCK`
    positions, so neither does it depend on where between blocks its prompt was cut into pieces.

    Args:
        lengths: New tokens of each row.
        cache: Where rows first_row, first_row + 1, ... hold what comes before the new tokens. None: nothing
            does.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        device: torch.device,
        cache: KVCache | None = None,
        first_row: int = 0,
    ):
        self._cache = cache
        self._first_row = first_row
        starts = cache.lengths[first_row : first_row + len(lengths)] if cache else [0] * len(lengths)
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        self._spans = list(pairwise(accumulate(lengths, initial=0)))
        self._blocks = [list(_blocks(start, end, device)) for start, end in zip(starts, ends, strict=True)]
        self._masks: dict[tuple[int, int], Tensor] = {}
        self.positions_T = torch.cat(
            [torch.arange(start, end, device=device) for start, end in zip(starts, ends, strict=True)]
        )

    def __call__(self, layer: int, query_THN: Tensor, key_TGN: Tensor, value_TGN: Tensor) -> Tensor:
        """Attend, and store keys and values if there is a cache."""
        outputs = []
        for row, ((first, last), blocks) in enumerate(
            zip(self._spans, self._blocks, strict=True), self._first_row
        ):
            query, key, value = (
                tensor[first:last].transpose(0, 1) for tensor in (query_THN, key_TGN, value_TGN)
            )
            start, end = blocks[0][0], blocks[-1][1]
            if self._cache is not None:
                keys, values = self._cache.keys[layer][row], self._cache.values[layer][row]
                keys[:, start:end] = key
                values[:, start:end] = value
                key, value = keys[:, :end], values[:, :end]
            for begin, stop in blocks:
                queries = query[:, begin - start : stop - start]
                outputs.append(self._attend(queries, key[:, :stop], value[:, :stop]))
        return torch.cat(outputs)

    def _attend(self, query_HQN: Tensor, key_GSN: Tensor, value_GSN: Tensor) -> Tensor:
        """The last Q of S positions. Returns [Q, H * N]."""
        queries, positions = query_HQN.shape[1], key_GSN.shape[1]
        mask_QS = self._mask(queries, positions, query_HQN) if queries < positions else None
        mixed_1HQN = F.scaled_dot_product_attention(
            query_HQN[None],
            key_GSN[None],
            value_GSN[None],
            mask_QS,
            is_causal=mask_QS is None,
            enable_gqa=True,
        )
        return mixed_1HQN[0].transpose(0, 1).flatten(1)

    def _mask(self, queries: int, positions: int, like: Tensor) -> Tensor:
        """Additive [Q, S], made once for all layers."""
        if (queries, positions) not in self._masks:
            later_QQ = like.new_full((queries, queries), float("-inf")).triu(1)
            self._masks[queries, positions] = F.pad(later_QQ, (positions - queries, 0))
        return self._masks[queries, positions]


def _blocks(start: int, end: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """Cut positions at whole blocks; a GPU would rather have few large products."""
    size = PROMPT_BLOCK if device.type == "cpu" else end
    yield from pairwise([start, *range((start // size + 1) * size, end, size), end])


class StepPlaces(NamedTuple):
    """Where the new tokens of a step go, and how far it reads."""

    lengths_B: Tensor
    """int64, on the device; committed positions of each row."""
    window: int
    """Positions that are read of every row: a multiple of `ALIGNMENT`, and no fewer than the longest row has
    with its new tokens."""

    @classmethod
    def of(cls, cache: KVCache, num_rows: int, num_queries: int, device: torch.device) -> "StepPlaces":
        """Of the first rows of a cache, as short as they allow."""
        lengths = cache.lengths[:num_rows]
        return cls(torch.tensor(lengths, device=device), round_up(max(lengths) + num_queries))


class StepAttention:
    """Attention of Q new tokens of each of the first B cache rows, causal among the Q.

    Queries that share a key-value head are stacked on the query axis, so keys and values are read
    once and never expanded. Nothing here depends on what tensors hold, so that a step may be recorded.

    Args:
        group: Query heads per key-value head.
    """

    def __init__(self, cache: KVCache, places: StepPlaces, num_queries: int, group: int):
        device = places.lengths_B.device
        self._cache = cache
        self._group = group
        self._window = places.window
        self._rows_B1 = torch.arange(len(places.lengths_B), device=device)[:, None]
        self._lengths_B1 = places.lengths_B[:, None]
        self._slots_BQ = self._lengths_B1 + torch.arange(num_queries, device=device)
        """Where the new keys and values are written."""
        self.positions_T = self._slots_BQ.flatten()
        slots_S = torch.arange(self._window, device=device)
        self._mask = self._as_mask(slots_S <= self._slots_BQ[:, :, None])

    def __call__(self, layer: int, query_THN: Tensor, key_TGN: Tensor, value_TGN: Tensor) -> Tensor:
        """Store keys and values after each row's length, then attend."""
        rows, queries = self._slots_BQ.shape
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[self._rows_B1, :, self._slots_BQ] = key_TGN.view(rows, queries, *key_TGN.shape[1:])
        values[self._rows_B1, :, self._slots_BQ] = value_TGN.view(rows, queries, *value_TGN.shape[1:])
        keys, values = keys[:rows, :, : self._window], values[:rows, :, : self._window]
        return self._attend(query_THN.view(rows, queries, *query_THN.shape[1:]), keys, values)

    def _attend(self, query_BQHN: Tensor, keys_BGSN: Tensor, values_BGSN: Tensor) -> Tensor:
        rows, queries, _, width = query_BQHN.shape
        kv_heads = keys_BGSN.shape[1]
        stacked = query_BQHN.view(rows, queries, kv_heads, self._group, width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            stacked.reshape(rows, kv_heads, queries * self._group, width), keys_BGSN, values_BGSN, self._mask
        )
        mixed = mixed.view(rows, kv_heads, queries, self._group, width).transpose(1, 2)
        return mixed.reshape(rows * queries, -1)

    def _as_mask(self, visible_BQS: Tensor) -> Tensor:
        """Additive [B, 1, Q * group, S]."""
        mask_BQS = torch.zeros(
            visible_BQS.shape, dtype=self._cache.keys[0].dtype, device=visible_BQS.device
        ).masked_fill_(~visible_BQS, float("-inf"))
        return mask_BQS.repeat_interleave(self._group, dim=1)[:, None]


class CompiledStepAttention:
    """The fast twin of `StepAttention` and `TreeAttention`: one call of compiled code.

    It reads a row to its own length and sums along a node's path without gaps, so a node has the bits that
    it would have in a chain, and a row those that it would have alone.

    Args:
        ancestry_BQQ: See `TreeAttention`; None is a chain.
    """

    def __init__(self, cache: KVCache, num_rows: int, num_queries: int, ancestry_BQQ: Tensor | None):
        self._cache = cache
        self._lengths_B = torch.tensor(cache.lengths[:num_rows])
        self._positions = sum(cache.lengths[:num_rows])
        self._seen_BQQ = None if ancestry_BQQ is None else ancestry_BQQ.contiguous()
        offsets_BQ = torch.arange(num_queries) if ancestry_BQQ is None else depths(ancestry_BQQ)
        self.positions_T = (self._lengths_B[:, None] + offsets_BQ).flatten()

    def __call__(self, layer: int, query_THN: Tensor, key_TGN: Tensor, value_TGN: Tensor) -> Tensor:
        """Store keys and values after each row's length, then attend."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        return step.attend_step(
            query_THN, key_TGN, value_TGN, keys, values, self._lengths_B, self._seen_BQQ, self._positions
        )


class TreeAttention(StepAttention):
    """Attention of the anchor and the nodes of a draft tree, who see the row, their ancestors and themselves.

    Keys lie in the order of the nodes, so sums run over a path with gaps and agree with those of a
    chain to rounding.

    Args:
        ancestry_BQQ: bool; whether a new token is another one's ancestor or itself.
    """

    def __init__(self, cache: KVCache, places: StepPlaces, ancestry_BQQ: Tensor, group: int):
        queries = ancestry_BQQ.shape[1]
        super().__init__(cache, places, queries, group)
        self.positions_T = (self._lengths_B1 + depths(ancestry_BQQ)).flatten()
        slots_S = torch.arange(self._window, device=ancestry_BQQ.device)
        visible_BQS = (slots_S < self._lengths_B1[:, :, None]).repeat(1, queries, 1)
        new_BQQ = self._slots_BQ[:, None].expand(-1, queries, -1)
        self._mask = self._as_mask(visible_BQS.scatter_(2, new_BQQ, ancestry_BQQ))


class ExactTreeAttention(TreeAttention):
    """The plain twin: every node attends over keys in the order of its path, as one step after another would.

    It reads the row once for every node, and gives a node the bits that it would have in a chain.
    """

    def __init__(self, cache: KVCache, places: StepPlaces, ancestry_BQQ: Tensor, group: int):
        super().__init__(cache, places, ancestry_BQQ, group)
        rows, queries, _ = ancestry_BQQ.shape
        slots_S = torch.arange(self._window, device=ancestry_BQQ.device)
        order_BQS = slots_S.repeat(rows, queries, 1)
        new_BQQ = self._slots_BQ[:, None].expand(-1, queries, -1)
        self._order_BQS = order_BQS.scatter_(2, new_BQQ, self._lengths_B1[:, :, None] + paths(ancestry_BQQ))
        visible_BQS = slots_S <= self.positions_T.view(rows, queries, 1)
        self._mask = self._as_mask(visible_BQS.flatten(0, 1)[:, None])

    def _attend(self, query_BQHN: Tensor, keys_BGSN: Tensor, values_BGSN: Tensor) -> Tensor:
        """Every query is a row of its own, whose keys are put in order."""
        keys, values = (
            tensor.transpose(1, 2)[self._rows_B1[:, :, None], self._order_BQS].flatten(0, 1).transpose(1, 2)
            for tensor in (keys_BGSN, values_BGSN)
        )
        return super()._attend(query_BQHN.flatten(0, 1)[:, None], keys, values)
