"""One DFlash training step: blocks at random anchors of each sequence, all in one forward.

A query in a block sees target features of the positions strictly before its anchor (the anchor's own
do not exist yet when it is drafted from) and all slots of its own block; nothing of other blocks.
Shapes: B batch rows, S context positions, M packed context rows, N blocks of all batch rows, A blocks
of the fullest batch row, K slots of a block (slot 0 is the anchor), D target width, G key/value
heads, R query heads of a group, d width of a head.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eagleray.drafters.base import StepTerms, TrainingBatch
from eagleray.drafters.blocks.grouped import group_queries, ungroup_queries
from eagleray.drafters.blocks.packing import Packing
from eagleray.drafters.blocks.teacher import HardTeacher, SlotTerms, SoftTeacher
from eagleray.drafters.dflash.anchors import choose_anchors

if TYPE_CHECKING:
    from eagleray.drafters.dflash.model import DFlashDrafter, DFlashLayer


def training_step(drafter: "DFlashDrafter", batch: TrainingBatch) -> StepTerms:
    """Cross-entropy of slots 1.. of every block, slot k weighted by exp(-(k - 1) / gamma)."""
    config = drafter.config
    blocks = Blocks.choose(batch, config.num_anchors, config.block_size)
    hidden_NKD = fill_blocks(drafter, batch, blocks)
    logits_NKU = torch.nn.functional.linear(drafter.norm(hidden_NKD[:, 1:]), drafter.target_head_UD())
    teacher = (SoftTeacher if config.soft_targets else HardTeacher)(drafter, batch)
    supervised_BT = torch.nn.functional.pad(batch.supervised_BT, (0, config.block_size))
    terms = SlotTerms.start(logits_NKU)
    for slot in range(1, config.block_size):
        label_N = blocks.anchor_N + slot
        supervised_N = supervised_BT[blocks.packing.batch_N, label_N]
        judged = teacher.judge(logits_NKU[:, slot - 1], blocks.packing.batch_N, label_N, supervised_N)
        terms.add(judged, math.exp(-(slot - 1) / config.gamma))
    return terms.total()


def fill_blocks(drafter: "DFlashDrafter", batch: TrainingBatch, blocks: "Blocks") -> Tensor:
    """Run the layers over all blocks. Returns [N, K, D], before the final norm."""
    context = InjectedContext(drafter, batch, blocks)
    ids_NK = drafter.block_ids(batch.ids_BT[blocks.packing.batch_N, blocks.anchor_N], blocks.size)
    hidden_XD = drafter.embed(ids_NK).flatten(0, 1)
    for layer in drafter.stack():
        hidden_XD = layer.finish(hidden_XD, context.attend(layer, layer.input_layernorm(hidden_XD)))
    return hidden_XD.unflatten(0, ids_NK.shape)


@dataclass(frozen=True)
class Blocks:
    """Where the blocks of a step are anchored, in batch order and ascending within a row."""

    packing: Packing
    anchor_N: Tensor
    size: int

    @classmethod
    def choose(cls, batch: TrainingBatch, num_anchors: int, size: int) -> "Blocks":
        """Draw up to `num_anchors` anchors per batch row."""
        batch_N, anchor_N = choose_anchors(batch, num_anchors)
        return cls(Packing.compacted(batch_N, len(batch.ids_BT)), anchor_N, size)

    def positions(self) -> Tensor:
        """Position of every slot, block after block: [N * K]."""
        offsets_K = torch.arange(self.size, device=self.anchor_N.device)
        return (self.anchor_N[:, None] + offsets_K).flatten()

    def hidden_context(self, context: int) -> Tensor:
        """bool [B, A, S]; context positions that a block must not see: its anchor's and all later ones."""
        positions_S = torch.arange(context, device=self.anchor_N.device)
        return positions_S >= self.packing.pad(self.anchor_N)[:, :, None]


class InjectedContext:
    """The fused target features, and attention of blocks over them and over themselves."""

    def __init__(self, drafter: "DFlashDrafter", batch: TrainingBatch, blocks: Blocks):
        self.blocks = blocks
        last_B = blocks.packing.pad(blocks.anchor_N).amax(1)
        positions_S = torch.arange(int(last_B.max()), device=last_B.device)
        self.context = Packing.in_place(positions_S < last_B[:, None])
        self.fused_MD = drafter.fuse(batch.features_BTLD[self.context.batch_N, self.context.slot_N])
        self.context_angles = drafter.rotary(self.context.slot_N)
        self.block_angles = drafter.rotary(blocks.positions())
        self.hidden_BAS = blocks.hidden_context(len(positions_S))

    def attend(self, layer: "DFlashLayer", source_XD: Tensor) -> Tensor:
        """One softmax over visible context and the own block. Returns [N * K, H * d]."""
        keys_MGd, values_MGd = layer.self_attn.keys_values(self.fused_MD, self.context_angles)
        keys_BGSd = self.context.pad(keys_MGd).transpose(1, 2)
        values_BGSd = self.context.pad(values_MGd).transpose(1, 2)
        own_keys, own_values = layer.self_attn.keys_values(source_XD, self.block_angles)
        own_keys_BG1AKd, own_values_BG1AKd = self._by_group(own_keys), self._by_group(own_values)
        queries_BAKHd = self._pad_blocks(layer.self_attn.queries(source_XD, self.block_angles))
        heads, width = queries_BAKHd.shape[3:]
        groups = keys_BGSd.shape[1]
        grouped = group_queries(queries_BAKHd.flatten(1, 2) * width**-0.5, groups)
        by_block = (len(grouped), groups, heads // groups, *queries_BAKHd.shape[1:3])
        split_BGRAKd = grouped.view(*by_block, width)
        scores = (grouped @ keys_BGSd.transpose(2, 3)).view(*by_block, keys_BGSd.shape[2])
        scores = scores.masked_fill(self.hidden_BAS[:, None, None, :, None], float("-inf"))
        own_scores = split_BGRAKd @ own_keys_BG1AKd.transpose(-1, -2)
        weights = torch.cat((scores, own_scores), -1).softmax(-1)
        context, own = weights.split((scores.shape[-1], self.blocks.size), -1)
        out = context.flatten(2, 4) @ values_BGSd + (own @ own_values_BG1AKd).view_as(grouped)
        out_BAKE = ungroup_queries(out, queries_BAKHd.shape[1] * self.blocks.size).unflatten(
            1, (-1, self.blocks.size)
        )
        return self.blocks.packing.pack(out_BAKE).flatten(0, 1)

    def _pad_blocks(self, rows: Tensor) -> Tensor:
        """[N * K, H, d] to [B, A, K, H, d]."""
        return self.blocks.packing.pad(rows.unflatten(0, (-1, self.blocks.size)))

    def _by_group(self, rows: Tensor) -> Tensor:
        """[N * K, G, d] to [B, G, 1, A, K, d], to broadcast over the query heads of a group."""
        return self._pad_blocks(rows).permute(0, 3, 1, 2, 4)[:, :, None]
