"""Drafting a chain or a tree: one row per committed position, then step after step from the newest.

Shapes: N newly committed positions or drafting nodes of all rows, R drafting rows, W nodes of a row that
take one step together (1 in a chain), D target width, E width that attention reads, U draft vocabulary,
H heads, d width of a head.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eagleray.drafters.base import Committed, DraftSession, DrawnDraft
from eagleray.drafters.blocks.chain.branches import Branches
from eagleray.drafters.blocks.chain.config import MAX_DEPTH
from eagleray.drafters.blocks.drawer import Drawer
from eagleray.drafters.blocks.growing import GrowingTree
from eagleray.drafters.blocks.kv_cache import DraftCache, Visible
from eagleray.drafters.blocks.layers import Angles
from eagleray.drafters.blocks.observed import Observed
from eagleray.speculation.config import SamplingConfig, TreeSetting
from eagleray.speculation.trees import TokenTree

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
        """Greedy chain."""
        return self._chain(num_rows, depth, lambda logits_R1U: logits_R1U.argmax(-1))

    @torch.inference_mode()
    def draw(
        self, num_rows: int, depth: int, samplings: Sequence[SamplingConfig], uniforms_RK: Tensor
    ) -> DrawnDraft:
        """Drawn chain; every token depends on the ones drawn before it."""
        drawer = Drawer(samplings, uniforms_RK)
        return drawer.draft(self._chain(num_rows, depth, drawer), self.drafter)

    def _chain(self, num_rows: int, depth: int, pick: Callable[[Tensor], Tensor]) -> Tensor:
        """Target ids [R, depth]; steps after the first feed back the drafter's own state and token.

        Args:
            pick: From the logits [R, 1, U] of a step to its draft ids [R, 1].
        """
        lengths = self.lengths[:num_rows]
        self.cache.reserve(lengths, scratch=depth)
        newest_R1 = self._newest(num_rows)
        logits_R1U, state_R1D = self._start(num_rows)
        drafted = [self.drafter.to_target_ids(pick(logits_R1U))]
        for step in range(1, depth):
            places_R1 = newest_R1 + step
            visible = Visible.first([length + step for length in lengths], places_R1.device)
            logits_R1U, state_R1D = self._go_on(drafted[-1], state_R1D, places_R1, places_R1, visible)
            drafted.append(self.drafter.to_target_ids(pick(logits_R1U)))
        return torch.cat(drafted, 1)

    @torch.inference_mode()
    def draft_tree(self, num_rows: int, depth: int, tree: TreeSetting) -> TokenTree:
        """Dynamic tree: expanded level by level, then cut to the most confident nodes."""
        lengths = self.lengths[:num_rows]
        self.cache.reserve(lengths, scratch=(depth - 1) * tree.top_k)
        newest_R1 = self._newest(num_rows)
        logits_RWU, state_RWD = self._start(num_rows)
        growing = GrowingTree(num_rows, logits_RWU)
        expanded = growing.grow(growing.root, logits_RWU, tree.top_k)
        branches = Branches(lengths, newest_R1.device)
        for level in range(1, depth):
            places_RW, visible = branches.extend(expanded.parent_RW)
            ids_RW = self.drafter.to_target_ids(expanded.ids_RW)
            parent_RWD = expanded.parent_RW[..., None].expand(-1, -1, state_RWD.shape[-1])
            positions_RW = (newest_R1 + level).expand_as(ids_RW)
            logits_RWU, state_RWD = self._go_on(
                ids_RW, state_RWD.gather(1, parent_RWD), positions_RW, places_RW, visible
            )
            expanded = growing.grow(expanded, logits_RWU, tree.top_k)
        cut = growing.cut(tree.nodes)
        return cut._replace(ids_BN=self.drafter.to_target_ids(cut.ids_BN))

    def _newest(self, num_rows: int) -> Tensor:
        """Newest committed position of rows 0, 1, ..., [R, 1]."""
        return torch.tensor(self.lengths[:num_rows], device=self.residual_RD.device)[:, None] - 1

    def _start(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """The step at each row's newest position: logits [R, 1, U] and state [R, 1, D]."""
        angles = self.drafter.rotary(self._newest(num_rows)[:, 0])
        visible = Visible.first(self.lengths[:num_rows], self.residual_RD.device)
        return self._predict(
            self.residual_RD[:num_rows, None], self.source_RE[:num_rows, None], angles, visible
        )

    def _go_on(
        self, ids_RW: Tensor, state_RWD: Tensor, positions_RW: Tensor, places_RW: Tensor, visible: Visible
    ) -> tuple[Tensor, Tensor]:
        """A step from the drafter's own states and the tokens drafted from them.

        Args:
            positions_RW: Where the states stand in the sequence.
            places_RW: Where their keys go in the cache.
        """
        rows, width = ids_RW.shape
        angles = self.drafter.rotary(positions_RW.flatten())
        entered = self.drafter.enter(ids_RW.flatten(), state_RWD.flatten(0, 1), positions_RW.flatten())
        rows_N = torch.arange(rows, device=ids_RW.device).repeat_interleave(width)
        keys_values = self.drafter.layer.self_attn.keys_values(entered[1], angles)
        self.cache.write(0, rows_N, places_RW.flatten(), *keys_values)
        residual_RWD, source_RWE = (tensor.unflatten(0, (rows, width)) for tensor in entered)
        return self._predict(residual_RWD, source_RWE, angles, visible)

    def _predict(
        self, residual_RWD: Tensor, source_RWE: Tensor, angles: Angles, visible: Visible
    ) -> tuple[Tensor, Tensor]:
        """Attention, the rest of the layer, and logits [R, W, U] and state [R, W, D] for the next step."""
        layer = self.drafter.layer
        queries_NHd = layer.self_attn.queries(source_RWE.flatten(0, 1), angles)
        attended_RWE = self.cache.attend(0, queries_NHd.unflatten(0, source_RWE.shape[:2]), visible)
        return self.drafter.predict(layer.finish(residual_RWD, attended_RWE))

    def reset(self, row: int) -> None:
        """Forget a row."""
        self.lengths[row] = 0

    def move(self, source: int, destination: int) -> None:
        """Copy a row over another one."""
        self.lengths[destination] = self.lengths[source]
        self.cache.move(source, destination)
        self.residual_RD[destination] = self.residual_RD[source]
        self.source_RE[destination] = self.source_RE[source]
