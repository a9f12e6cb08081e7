"""Prompts that begin alike: what was computed for whole blocks of them is kept and copied.

A block is known by the ids of its prompt up to its end. Where a prompt has the same bits in pieces
(`targets/attention.py`), an answer has the same bits with and without reuse: blocks come from prompts
alone, never from decoded answers, whose keys agree with those of a prompt to rounding only.
Shapes: S positions of a block, L tapped layers, D target width, G key-value heads, N head width.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from eagleray.targets.attention import PROMPT_BLOCK
from eagleray.targets.kv_cache import KVCache

if TYPE_CHECKING:
    from eagleray.engines.native.rows import Row


@dataclass(frozen=True, kw_only=True)
class Block:
    """The target's state at the positions of one block."""

    keys_values: Tensor
    """[2, layers, G, S, N]."""
    features_SLD: Tensor
    """What a drafter or a capture reads."""
    final_SD: Tensor

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return sum(tensor.nbytes for tensor in (self.keys_values, self.features_SLD, self.final_SD))


class PrefixCache:
    """Blocks of prompts; the least recently used go first.

    Args:
        max_bytes: Memory that blocks may take. 0 keeps none.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._bytes = 0

    def matched(self, row: "Row") -> int:
        """With how many kept blocks a row's prompt begins."""
        keys = _copyable(row)
        return next((count for count, key in enumerate(keys) if key not in self._blocks), len(keys))

    def awaits(self, row: "Row", others: Sequence["Row"]) -> bool:
        """Whether one of the other rows is about to compute the next block of a row."""
        if not self._max_bytes:
            return False
        following = _copyable(row)[self.matched(row) :][:1]
        return any(key in other.block_keys for key in following for other in others)

    def take(self, row: "Row") -> list[Block]:
        """The kept blocks that a row's prompt begins with."""
        keys = row.block_keys[: self.matched(row)]
        self._touch(keys)
        return [self._blocks[key] for key in keys]

    def keep(
        self, row: "Row", count: int, cache: KVCache, slot: int, features_TLD: Tensor, final_TD: Tensor
    ) -> None:
        """Keep the whole blocks among the next `count` tokens of a row's prompt, which were just run.

        Args:
            slot: The row's place in the cache.
        """
        first = -(-row.prefilled // PROMPT_BLOCK)
        for number in range(first, (row.prefilled + count) // PROMPT_BLOCK):
            if self._max_bytes and row.block_keys[number] not in self._blocks:
                start = number * PROMPT_BLOCK
                place = slice(start - row.prefilled, start - row.prefilled + PROMPT_BLOCK)
                block = Block(
                    keys_values=cache.read(slot, start, start + PROMPT_BLOCK),
                    features_SLD=features_TLD[place].clone(),
                    final_SD=final_TD[place].clone(),
                )
                self.put(row.block_keys[: number + 1], block)

    def put(self, keys: Sequence[bytes], block: Block) -> None:
        """Keep a block, known by the last of the keys; the others are those of the blocks before it."""
        self._blocks[keys[-1]] = block
        self._bytes += block.num_bytes
        self._touch(keys)
        while self._bytes > self._max_bytes:
            _, oldest = self._blocks.popitem(last=False)
            self._bytes -= oldest.num_bytes

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Make blocks the latest used; the last one first, so that a block never outlives those before it."""
        for key in reversed(keys):
            if key in self._blocks:
                self._blocks.move_to_end(key)


def _copyable(row: "Row") -> tuple[bytes, ...]:
    """The last token of a prompt is always computed: its state yields the first token of the answer."""
    return row.block_keys[: (len(row.request.prompt_ids) - 1) // PROMPT_BLOCK]


def block_keys(prompt_ids: Sequence[int]) -> tuple[bytes, ...]:
    """A hash of the prompt up to the end of each of its whole blocks."""
    digest, keys = hashlib.sha256(), []
    for end in range(PROMPT_BLOCK, len(prompt_ids) + 1, PROMPT_BLOCK):
        digest.update(array("q", prompt_ids[end - PROMPT_BLOCK : end]).tobytes())
        keys.append(digest.copy().digest())
    return tuple(keys)
