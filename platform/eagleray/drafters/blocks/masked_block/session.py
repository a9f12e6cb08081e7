"""Drafting with a masked block: keys of every committed position, then one forward over the block.

Shapes: B rows of a call, Q newly committed positions or slots of a row, N real positions of a call,
R drafting rows, X = R * Q, S cached positions, D target width, E = H * d attended width.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.base import Committed, DraftSession
from eagleray.drafters.blocks.kv_cache import DraftCache, Visible
from eagleray.drafters.blocks.layers import Angles
from eagleray.drafters.blocks.masked_block.config import Reach
from eagleray.drafters.blocks.masked_block.injection import Injection
from eagleray.drafters.blocks.masked_block.layer import MaskedBlockLayer
from eagleray.drafters.blocks.observed import Observed
from eagleray.drafters.blocks.packing import Packing

if TYPE_CHECKING:
    from eagleray.drafters.blocks.masked_block.drafter import MaskedBlockDrafter


@dataclass(frozen=True)
class Slots:
    """Where some slots of rows 0..R-1 lie in the cache."""

    positions_RQ: Tensor
    angles: Angles
    last: int
    """Highest of the positions."""
    even: bool
    """All rows have as many committed positions."""

    def visible(self, reach: Reach) -> Visible:
        """What the slots see: their row's committed positions, its earlier slots, and these."""
        longest = self.last + 1
        if self.even and reach == Reach(window=None, causal=False):
            return Visible(longest)
        seen_RQ = self.positions_RQ if reach.causal else self.positions_RQ[:, -1:]
        return Visible.between(self.positions_RQ - (reach.window or longest) + 1, seen_RQ, longest)


class MaskedBlockSession(DraftSession):
    """Keys and values of committed positions, and each row's anchor."""

    def __init__(self, drafter: "MaskedBlockDrafter", max_rows: int, max_length: int):
        self.drafter = drafter
        like = drafter.fc.weight
        capacity = max_length + drafter.config.block_size
        self.cache = DraftCache(
            like, drafter.dimensions, layers=len(drafter.layers), rows=max_rows, capacity=capacity
        )
        self.head_UD = drafter.target_head_UD()
        self.reaches = drafter.reaches()
        stack = drafter.stack()
        injects = all(layer.injects for layer in stack)
        self.injection = Injection(stack, drafter.dimensions.rms_norm_eps) if injects else None
        self.lengths = [0] * max_rows
        self.anchors_R = torch.zeros(max_rows, dtype=torch.int64, device=like.device)

    @torch.inference_mode()
    def observe(self, committed: Committed) -> None:
        """Store every layer's keys and values of the new positions, and the new anchors."""
        seen = Observed.unpad(committed, self.lengths)
        self.cache.reserve(self.lengths)
        context_ND = self.drafter.fuse(seen.features_NLD)
        angles = self.drafter.rotary(seen.positions_N)
        if self.injection is not None:
            self.cache.write_all(seen.rows_N, seen.positions_N, *self.injection(context_ND, angles))
        else:
            self._carry(context_ND, seen, angles)
        self.anchors_R[seen.grown_rows] = seen.next_ids_N[seen.newest_index]

    def _carry(self, context_ND: Tensor, seen: Observed, angles: Angles) -> None:
        """Store keys and values layer by layer, each made of what the one before made of the positions."""
        stack = self.drafter.stack()
        for index, layer in enumerate(stack):
            keys_NGd, values_NGd = layer.self_attn.keys_values(layer.context_source(context_ND), angles)
            self.cache.write(index, seen.rows_N, seen.positions_N, keys_NGd, values_NGd)
            if layer is not stack[-1]:
                attend = partial(self._attend_committed, index, layer, seen, angles)
                context_ND = layer.carry(context_ND, attend)

    @torch.inference_mode()
    def draft(self, num_rows: int, depth: int) -> Tensor:
        """Fill a block of `depth + 1` slots, the size at which engines run it."""
        ids_RQ = self.drafter.block_ids(self.anchors_R[:num_rows], depth + 1)
        return self.choose(self.run(ids_RQ, 0)[:, 1:])

    def choose(self, states_RKD: Tensor) -> Tensor:
        """Target ids of the slots whose final states these are."""
        return self.drafter.to_target_ids(F.linear(states_RKD, self.head_UD).argmax(-1))

    def run(self, ids_RQ: Tensor, first_slot: int) -> Tensor:
        """Run slots `first_slot`, ... of rows 0..R-1. Returns their states after the final norm [R, Q, D]."""
        rows, queries = ids_RQ.shape
        lengths = self.lengths[:rows]
        self.cache.reserve(lengths, scratch=first_slot + queries)
        offsets_Q = torch.arange(first_slot, first_slot + queries, device=ids_RQ.device)
        positions_RQ = torch.tensor(lengths, device=ids_RQ.device)[:, None] + offsets_Q
        slots = Slots(
            positions_RQ,
            self.drafter.rotary(positions_RQ.flatten()),
            last=max(lengths) + first_slot + queries - 1,
            even=min(lengths) == max(lengths),
        )
        visible = {reach: slots.visible(reach) for reach in set(self.reaches)}
        hidden_RQD = self.drafter.embed(ids_RQ)
        for index, layer in enumerate(self.drafter.stack()):
            attend = partial(self._attend_slots, index, layer, slots, visible[self.reaches[index]])
            hidden_RQD = layer(hidden_RQD, attend)
        states_RQD: Tensor = self.drafter.norm(hidden_RQD)
        return states_RQD

    def reset(self, row: int) -> None:
        """Forget a row."""
        self.lengths[row] = 0

    def move(self, source: int, destination: int) -> None:
        """Copy a row over another one."""
        self.lengths[destination] = self.lengths[source]
        self.cache.move(source, destination)
        self.anchors_R[destination] = self.anchors_R[source]

    def _attend_slots(
        self, index: int, layer: MaskedBlockLayer, slots: Slots, visible: Visible, source_RQD: Tensor
    ) -> Tensor:
        rows, queries = slots.positions_RQ.shape
        rows_X = torch.arange(rows, device=source_RQD.device).repeat_interleave(queries)
        source_XD = source_RQD.flatten(0, 1)
        keys_XGd, values_XGd = layer.self_attn.keys_values(source_XD, slots.angles)
        self.cache.write(index, rows_X, slots.positions_RQ.flatten(), keys_XGd, values_XGd)
        queries_RQHd = layer.self_attn.queries(source_XD, slots.angles).unflatten(0, (rows, queries))
        return self.cache.attend(index, queries_RQHd, visible)

    def _attend_committed(
        self, index: int, layer: MaskedBlockLayer, seen: Observed, angles: Angles, source_ND: Tensor
    ) -> Tensor:
        """Committed positions attend to those up to themselves, within the layer's window."""
        rows_R, row_index_N = seen.rows_N.unique_consecutive(return_inverse=True)
        packing = Packing.compacted(row_index_N, len(rows_R))
        positions_RQ = packing.pad(seen.positions_N)
        longest = int(seen.positions_N.max()) + 1
        window = self.reaches[index].window or longest
        visible = Visible.between(positions_RQ - window + 1, positions_RQ, longest)
        queries_RQHd = packing.pad(layer.self_attn.queries(source_ND, angles))
        return packing.pack(self.cache.attend(index, queries_RQHd, visible, rows_R))
