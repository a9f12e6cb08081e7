"""What a training step does with blocks, whatever stands in their slots: run them and judge them.

Shapes: B batch rows, T positions, N blocks of all batch rows, K slots of a block, P = predicted slots,
D target width, U draft vocabulary.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.masked_block.config import MaskedBlockConfig
from eagleray.drafters.blocks.masked_block.context import BlockAttention, Blocks, Context
from eagleray.drafters.blocks.teacher import HardTeacher, SlotTerms, SoftTeacher

if TYPE_CHECKING:
    from eagleray.drafters.blocks.masked_block.drafter import MaskedBlockDrafter


def fill_blocks(
    drafter: "MaskedBlockDrafter", batch: TrainingBatch, blocks: Blocks, ids_NK: Tensor
) -> Tensor:
    """Run the layers over all blocks. Returns the states of the slots after the final norm [N, K, D]."""
    context = Context(drafter, batch, blocks)
    attention = BlockAttention(drafter, blocks, context.width)
    hidden_NKD = drafter.embed(ids_NK)
    stack = drafter.stack()
    for layer, reach in zip(stack, drafter.reaches(), strict=True):
        keys_BGSd, values_BGSd = context.keys_values(layer)
        attend = partial(attention.attend, layer.self_attn, reach, keys_BGSd, values_BGSd)
        hidden_NKD = layer(hidden_NKD, attend)
        if layer is not stack[-1]:
            context.carry(layer, reach.window, keys_BGSd, values_BGSd)
    states_NKD: Tensor = drafter.norm(hidden_NKD)
    return states_NKD


@dataclass(frozen=True)
class Labels:
    """The tokens that the slots after each anchor are to predict, nearest first."""

    batch_N: Tensor
    position_NP: Tensor
    ids_NP: Tensor
    """Arbitrary past the end of the sample."""
    judged_NP: Tensor
    """bool; whether the token is of the anchor's sample, supervised, and its slot is to predict it."""

    @classmethod
    def after(cls, batch: TrainingBatch, blocks: Blocks, count: int) -> "Labels":
        """The `count` tokens after each anchor."""
        batch_N = blocks.packing.batch_N
        offsets_P = torch.arange(1, count + 1, device=batch_N.device)
        position_NP = blocks.anchor_N[:, None] + offsets_P
        inside_NP = position_NP < batch.ends_BT[batch_N, blocks.anchor_N, None]
        judged_BT = F.pad(batch.supervised_BT, (0, count))
        ids_BT = F.pad(batch.ids_BT, (0, count))
        return cls(
            batch_N,
            position_NP,
            ids_BT[batch_N[:, None], position_NP],
            judged_BT[batch_N[:, None], position_NP] & inside_NP,
        )


def judge_slots(
    drafter: "MaskedBlockDrafter", batch: TrainingBatch, labels: Labels, logits_NPU: Tensor, weight_NP: Tensor
) -> SlotTerms:
    """Cross-entropy of every slot that is judged, weighted by slot and block."""
    teacher = (SoftTeacher if drafter.config.soft_targets else HardTeacher)(drafter, batch)
    terms = SlotTerms.start(logits_NPU)
    for slot in range(logits_NPU.shape[1]):
        terms.add(
            teacher.judge(
                logits_NPU[:, slot],
                labels.batch_N,
                labels.position_NP[:, slot],
                labels.judged_NP[:, slot],
                weight_NP[:, slot],
            )
        )
    return terms


@torch.no_grad()
def slot_weights(
    config: MaskedBlockConfig, drafter: "MaskedBlockDrafter", labels: Labels, logits_NPU: Tensor
) -> Tensor:
    """Weight of each slot in the loss [N, P], as `slot_weighting` asks."""
    if config.slot_weighting == "decay":
        slots_P = torch.arange(logits_NPU.shape[1], device=logits_NPU.device)
        return (-slots_P / config.gamma).exp().expand(logits_NPU.shape[:2])
    gold_NP = logits_NPU.gather(-1, drafter.to_draft_ids(labels.ids_NP)[..., None])[..., 0]
    probability_NP = (gold_NP - logits_NPU.logsumexp(-1)).exp() * drafter.is_draftable(labels.ids_NP)
    return dpace_weights(probability_NP, labels.judged_NP, config.dpace_alpha)


def dpace_weights(probability_NP: Tensor, judged_NP: Tensor, alpha: float) -> Tensor:
    """D-PACE (arXiv 2605.18810): the expected number of accepted slots from each slot on.

    Slot k counts as accepted with s_k = (1 - alpha) q_k + alpha, one that is not judged with 1, and is
    reached with c_k = s_1 ... s_k; the weight of slot k is the sum of c_j over judged slots j >= k.
    """
    accepted_NP = torch.where(judged_NP, (1 - alpha) * probability_NP + alpha, 1.0)
    reached_NP = accepted_NP.cumprod(1) * judged_NP
    return reached_NP.flip(1).cumsum(1).flip(1)
