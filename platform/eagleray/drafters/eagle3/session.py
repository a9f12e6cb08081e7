"""Drafting with EAGLE-3: one observed row per committed position, then a recursive chain.

Shapes: B rows of a call, Q newly committed positions, N real ones of them, R drafting rows,
L tapped layers, D target width, E = 2 D, K draft slots.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eagleray.drafters.base import Committed, DraftSession
from eagleray.drafters.blocks.kv_cache import DraftCache, Visible
from eagleray.drafters.blocks.observed import Observed

if TYPE_CHECKING:
    from eagleray.drafters.eagle3.model import Eagle3Drafter


class Eagle3Session(DraftSession):
    """Keys and values of committed positions, and the inputs of each row's newest one."""

    def __init__(self, drafter: "Eagle3Drafter", max_rows: int, max_length: int):
        self.drafter = drafter
        like = drafter.fc.weight
        capacity = max_length + drafter.config.max_depth
        self.cache = DraftCache(like, drafter.dimensions, layers=1, rows=max_rows, capacity=capacity)
        self.lengths = [0] * max_rows
        self.residual_RD = like.new_zeros(max_rows, like.shape[0])
        self.joined_RE = like.new_zeros(max_rows, 2 * like.shape[0])

    @torch.inference_mode()
    def observe(self, committed: Committed) -> None:
        """Store keys of the new positions, and the newest one's inputs for the first draft step."""
        layer = self.drafter.midlayer
        seen = Observed.unpad(committed, self.lengths)
        self.cache.reserve(self.lengths)
        fused_ND = self.drafter.fuse(seen.features_NLD)
        residual_ND, joined_NE = layer.enter(self.drafter.embed(seen.next_ids_N), fused_ND)
        keys_NGd, values_NGd = layer.self_attn.keys_values(joined_NE, self.drafter.rotary(seen.positions_N))
        self.cache.write(0, seen.rows_N, seen.positions_N, keys_NGd, values_NGd)
        self.residual_RD[seen.grown_rows] = residual_ND[seen.newest_index]
        self.joined_RE[seen.grown_rows] = joined_NE[seen.newest_index]

    @torch.inference_mode()
    def draft(self, num_rows: int, depth: int) -> Tensor:
        """Greedy chain; steps after the first feed back the drafter's own state and token."""
        layer, attention = self.drafter.midlayer, self.drafter.midlayer.self_attn
        rows_R = torch.arange(num_rows, device=self.residual_RD.device)
        newest_R = torch.tensor(self.lengths[:num_rows], device=rows_R.device) - 1
        state_RD, joined_RE = self.residual_RD[:num_rows], self.joined_RE[:num_rows]
        self.cache.reserve(self.lengths[:num_rows], scratch=depth)
        drafted: list[Tensor] = []
        for step in range(depth):
            angles = self.drafter.rotary(newest_R + step)
            if step > 0:
                state_RD, joined_RE = layer.enter(self.drafter.embed(drafted[-1]), state_RD)
                self.cache.write(0, rows_R, newest_R + step, *attention.keys_values(joined_RE, angles))
            counts = [length + step for length in self.lengths[:num_rows]]
            visible = Visible.first(counts, rows_R.device)
            attended = self.cache.attend(0, attention.queries(joined_RE, angles)[:, None], visible)
            logits_RU, state_RD = self.drafter.predict(layer.finish(state_RD, attended[:, 0]))
            drafted.append(self.drafter.to_target_ids(logits_RU.argmax(-1)))
        return torch.stack(drafted, 1)

    def reset(self, row: int) -> None:
        """Forget a row."""
        self.lengths[row] = 0

    def move(self, source: int, destination: int) -> None:
        """Copy a row over another one."""
        self.lengths[destination] = self.lengths[source]
        self.cache.move(source, destination)
        self.residual_RD[destination] = self.residual_RD[source]
        self.joined_RE[destination] = self.joined_RE[source]
