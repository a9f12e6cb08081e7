"""Attention of a training step: blocks over the positions before their anchors and over themselves.

A slot of a block sees target features of its sample's positions strictly before its anchor (the anchor's
own do not exist yet when it is drafted from) and slots of its own block; nothing of other blocks.
Shapes: B batch rows, S context positions, M packed context rows, N blocks of all batch rows, A blocks
of the fullest batch row, K slots of a block (slot 0 is the anchor), D target width, H query heads,
G key/value heads, R query heads of a group, d width of a head, E = H * d.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.grouped import attend, group_queries, ungroup_queries
from eagleray.drafters.blocks.layers import Projections
from eagleray.drafters.blocks.masked_block.anchors import choose_anchors
from eagleray.drafters.blocks.masked_block.config import Reach
from eagleray.drafters.blocks.masked_block.layer import MaskedBlockLayer
from eagleray.drafters.blocks.packing import Packing

if TYPE_CHECKING:
    from eagleray.drafters.blocks.masked_block.drafter import MaskedBlockDrafter


@dataclass(frozen=True)
class Blocks:
    """Where the blocks of a step are anchored, in batch order and ascending within a row."""

    packing: Packing
    anchor_N: Tensor
    start_N: Tensor
    """Where the sample of each block begins."""
    size: int

    @classmethod
    def choose(cls, batch: TrainingBatch, num_anchors: int, size: int) -> "Blocks":
        """Draw up to `num_anchors` anchors per sample."""
        batch_N, anchor_N = choose_anchors(batch, num_anchors)
        start_N = batch.starts_BT[batch_N, anchor_N]
        return cls(Packing.compacted(batch_N, len(batch.ids_BT)), anchor_N, start_N, size)

    def positions(self) -> Tensor:
        """Position of every slot in its batch row: [N, K]."""
        return self.anchor_N[:, None] + torch.arange(self.size, device=self.anchor_N.device)

    def hidden_context(self, context: int, window: int | None) -> Tensor:
        """bool [B, A, K, S], or [B, A, 1, S] without a window: context positions that a slot must not see,
        which are its anchor's, all later ones, those beyond the window and those of other samples."""
        positions_S = torch.arange(context, device=self.anchor_N.device)
        anchor_BA11 = self.packing.pad(self.anchor_N)[:, :, None, None]
        start_BA11 = self.packing.pad(self.start_N)[:, :, None, None]
        hidden = (positions_S >= anchor_BA11) | (positions_S < start_BA11)
        if window is None:
            return hidden
        return hidden | (positions_S <= self.packing.pad(self.positions())[..., None] - window)


class Context:
    """States of the committed positions, from layer to layer, and the keys that blocks see of them."""

    def __init__(self, drafter: "MaskedBlockDrafter", batch: TrainingBatch, blocks: Blocks):
        last_B = blocks.packing.pad(blocks.anchor_N).amax(1)
        self.width = max(1, int(last_B.max()))
        positions_S = torch.arange(self.width, device=last_B.device)
        self.packing = Packing.in_place(positions_S < last_B[:, None])
        self.starts_BS = batch.starts_BT[:, : self.width]
        self.angles = drafter.rotary(
            self.packing.slot_N - self.starts_BS[self.packing.batch_N, self.packing.slot_N]
        )
        self.state_MD = drafter.fuse(batch.features_BTLD[self.packing.batch_N, self.packing.slot_N])

    def keys_values(self, layer: MaskedBlockLayer) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the committed positions, both [B, G, S, d]."""
        source_MD = layer.context_source(self.state_MD)
        keys_MGd, values_MGd = layer.self_attn.keys_values(source_MD, self.angles)
        return self.packing.pad(keys_MGd).transpose(1, 2), self.packing.pad(values_MGd).transpose(1, 2)

    def carry(
        self, layer: MaskedBlockLayer, window: int | None, keys_BGSd: Tensor, values_BGSd: Tensor
    ) -> None:
        """Go on to the next layer; `keys_BGSd` and `values_BGSd` are what this one made of the states."""
        attend_own = partial(self._attend, layer.self_attn, window, keys_BGSd, values_BGSd)
        self.state_MD = layer.carry(self.state_MD, attend_own)

    def _attend(
        self,
        attention: Projections,
        window: int | None,
        keys_BGSd: Tensor,
        values_BGSd: Tensor,
        source_MD: Tensor,
    ) -> Tensor:
        """Committed positions attend to those of their sample up to themselves, within the window."""
        positions_S = torch.arange(self.width, device=source_MD.device)
        back_SS = positions_S[:, None] - positions_S
        visible_SS = (back_SS >= 0) & (back_SS < (window or self.width))
        queries_BSHd = self.packing.pad(attention.queries(source_MD, self.angles))
        visible_BSS = visible_SS & (positions_S >= self.starts_BS[..., None])
        return self.packing.pack(attend(queries_BSHd, keys_BGSd, values_BGSd, visible_BSS))


class BlockAttention:
    """Attention of all blocks over their context and over themselves, in one softmax."""

    def __init__(self, drafter: "MaskedBlockDrafter", blocks: Blocks, context: int):
        self.blocks = blocks
        self.angles = drafter.rotary((blocks.positions() - blocks.start_N[:, None]).flatten())
        self.hidden = {
            window: blocks.hidden_context(context, window)
            for window in {reach.window for reach in drafter.reaches()}
        }
        slots_K = torch.arange(blocks.size, device=blocks.anchor_N.device)
        self.later_KK = slots_K > slots_K[:, None]

    def attend(
        self, attention: Projections, reach: Reach, keys_BGSd: Tensor, values_BGSd: Tensor, source_NKD: Tensor
    ) -> Tensor:
        """From what queries and own keys are made of to what the slots attended [N, K, E]."""
        source_XD = source_NKD.flatten(0, 1)
        own_keys, own_values = attention.keys_values(source_XD, self.angles)
        own_keys_BG1AKd, own_values_BG1AKd = self._by_group(own_keys), self._by_group(own_values)
        queries_BAKHd = self._pad_blocks(attention.queries(source_XD, self.angles))
        heads, width = queries_BAKHd.shape[3:]
        groups = keys_BGSd.shape[1]
        grouped = group_queries(queries_BAKHd.flatten(1, 2) * width**-0.5, groups)
        by_block = (len(grouped), groups, heads // groups, *queries_BAKHd.shape[1:3])
        split_BGRAKd = grouped.view(*by_block, width)
        scores = (grouped @ keys_BGSd.transpose(2, 3)).view(*by_block, keys_BGSd.shape[2])
        scores = scores.masked_fill(self.hidden[reach.window][:, None, None], float("-inf"))
        own_scores = split_BGRAKd @ own_keys_BG1AKd.transpose(-1, -2)
        if reach.causal:
            own_scores = own_scores.masked_fill(self.later_KK, float("-inf"))
        weights = torch.cat((scores, own_scores), -1).softmax(-1)
        context, own = weights.split((scores.shape[-1], self.blocks.size), -1)
        out = context.flatten(2, 4) @ values_BGSd
        out = out + (own @ own_values_BG1AKd).view_as(grouped)
        slots = queries_BAKHd.shape[1] * self.blocks.size
        return self.blocks.packing.pack(ungroup_queries(out, slots).unflatten(1, (-1, self.blocks.size)))

    def _pad_blocks(self, rows: Tensor) -> Tensor:
        """[N * K, H, d] to [B, A, K, H, d]."""
        return self.blocks.packing.pad(rows.unflatten(0, (-1, self.blocks.size)))

    def _by_group(self, rows: Tensor) -> Tensor:
        """[N * K, G, d] to [B, G, 1, A, K, d], to broadcast over the query heads of a group."""
        return self._pad_blocks(rows).permute(0, 3, 1, 2, 4)[:, :, None]
