"""Who fits into the key-value cache: rows are let in by what they may grow to, so that none is ever
stopped."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.rows import Row
from eagleray.errors import EngineError
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.kv_cache import round_up


@dataclass(frozen=True, kw_only=True)
class CacheBudget:
    """Bound of the target's cache, in which every row has the room of the longest."""

    positions: int | None
    """Of all rows together. None: no bound."""
    draft_room: int
    """Positions past the end of a sequence that verification may write to."""

    @classmethod
    def of(
        cls, geometry: TargetGeometry, dtype: torch.dtype, config: NativeEngineConfig, draft_room: int
    ) -> "CacheBudget":
        """What the settings allow, for a target of these numbers."""
        if config.kv_cache_gib is None:
            return cls(positions=None, draft_room=draft_room)
        heads = geometry.num_layers * geometry.num_kv_heads
        position_bytes = 2 * heads * geometry.head_dim * dtype.itemsize
        return cls(positions=int(config.kv_cache_gib * 2**30) // position_bytes, draft_room=draft_room)

    def most(self, row: Row) -> int:
        """Positions that a row may come to take."""
        return round_up(len(row.request.prompt_ids) + row.max_answer_tokens + self.draft_room)

    def holds(self, rows: Sequence[Row]) -> bool:
        """Whether these rows fit together, however long their answers become."""
        return self.positions is None or len(rows) * max(map(self.most, rows)) <= self.positions

    def check(self, row: Row) -> None:
        """Refuse a row that fits not even alone.

        Raises:
            EngineError: See above.
        """
        if not self.holds([row]):
            raise EngineError(
                f"Request {row.request.request_id!r} may come to take {self.most(row)} positions of the "
                f"key-value cache (a prompt of {len(row.request.prompt_ids)} tokens, up to "
                f"{row.max_answer_tokens} new ones and room for drafts); it holds {self.positions}. "
                "Lower max_new_tokens, or raise kv_cache_gib in the engine's settings."
            )
