"""Drafting a chain: one observed row per committed position, then step after step from the newest.

Shapes: N newly committed positions of all rows, R drafting rows, D target width, E width that attention
reads, K draft slots.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eagleray.drafters.base import Committed, DraftSession
from eagleray.drafters.blocks.chain.config import MAX_DEPTH
from eagleray.drafters.blocks.kv_cache import DraftCache, Visible
from eagleray.drafters.blocks.observed import Observed

if TYPE_CHECKING:
    from eagleray.drafters.blocks.chain.drafter import ChainDrafter


class ChainSession(DraftSession):
    """Keys and values of committed positions, and the inputs of each row's newest one."""

    def __init__(self, drafter: "ChainDrafter", max_rows: int, max_length: int):
        self.drafter = drafter
        like = drafter.layer.self_attn.q_proj.weight
        capacity = max_length + MAX_DEPTH
        self.cache = DraftCache(like, drafter.dimensions, layers=1, rows=max_rows, capacity=capacity)
        self.lengths = [0] * max_rows
        self.residual_RD = like.new_zeros(max_rows, drafter.dimensions.hidden_size)
        self.source_RE = like.new_zeros(max_rows, like.shape[1])

    @torch.inference_mode()
    def observe(self, committed: Committed) -> None:
        """Store keys of the new positions, and the newest one's inputs for the first draft step."""
        drafter = self.drafter
        seen = Observed.unpad(committed, self.lengths)
        self.cache.reserve(self.lengths)
        hidden_ND = drafter.start(seen.features_NLD, seen.final_ND)
        residual_ND, source_NE = drafter.enter(seen.next_ids_N, hidden_ND, seen.positions_N)
        angles = drafter.rotary(seen.positions_N)
        keys_NGd, values_NGd = drafter.layer.self_attn.keys_values(source_NE, angles)
        self.cache.write(0, seen.rows_N, seen.positions_N, keys_NGd, values_NGd)
        self.residual_RD[seen.grown_rows] = residual_ND[seen.newest_index]
        self.source_RE[seen.grown_rows] = source_NE[seen.newest_index]

    @torch.inference_mode()
    def draft(self, num_rows: int, depth: int) -> Tensor:
        """Greedy chain; steps after the first feed back the drafter's own state and token."""
        drafter, attention = self.drafter, self.drafter.layer.self_attn
        rows_R = torch.arange(num_rows, device=self.residual_RD.device)
        newest_R = torch.tensor(self.lengths[:num_rows], device=rows_R.device) - 1
        state_RD, source_RE = self.residual_RD[:num_rows], self.source_RE[:num_rows]
        self.cache.reserve(self.lengths[:num_rows], scratch=depth)
        drafted: list[Tensor] = []
        for step in range(depth):
            angles = drafter.rotary(newest_R + step)
            if step > 0:
                state_RD, source_RE = drafter.enter(drafted[-1], state_RD, newest_R + step)
                self.cache.write(0, rows_R, newest_R + step, *attention.keys_values(source_RE, angles))
            counts = [length + step for length in self.lengths[:num_rows]]
            visible = Visible.first(counts, rows_R.device)
            attended = self.cache.attend(0, attention.queries(source_RE, angles)[:, None], visible)
            logits_RU, state_RD = drafter.predict(drafter.layer.finish(state_RD, attended[:, 0]))
            drafted.append(drafter.to_target_ids(logits_RU.argmax(-1)))
        return torch.stack(drafted, 1)

    def reset(self, row: int) -> None:
        """Forget a row."""
        self.lengths[row] = 0

    def move(self, source: int, destination: int) -> None:
        """Copy a row over another one."""
        self.lengths[destination] = self.lengths[source]
        self.cache.move(source, destination)
        self.residual_RD[destination] = self.residual_RD[source]
        self.source_RE[destination] = self.source_RE[source]
