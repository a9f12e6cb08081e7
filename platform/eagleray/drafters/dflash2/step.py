"""One DFlash 2 training step: the slots' cross-entropy as in DFlash, and the selector's beside it.

Our reading, where nothing is published. The selector is taught by a cross-entropy over the best
tokens of each slot, the true token before it standing as predecessor, with the slot's own weight.
Where the right token is not among the best it takes the place of the last of them, in the loss only.
The loss reaches the network too: it may leave to the selector what the selector does better. Slots
count as right when selector and slot together choose right. Shapes: N blocks, P predicted slots,
C candidates of a slot, D width, U draft vocabulary.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.base import StepTerms, TrainingBatch
from eagleray.drafters.blocks.masked_block.context import Blocks
from eagleray.drafters.blocks.masked_block.step import Labels, fill_blocks, judge_slots, slot_weights

if TYPE_CHECKING:
    from eagleray.drafters.dflash2.model import DFlash2Drafter


def training_step(drafter: "DFlash2Drafter", batch: TrainingBatch) -> StepTerms:
    """Cross-entropy of slots and of the selector, over blocks at random anchors."""
    config = drafter.config
    blocks = Blocks.choose(batch, config.num_anchors, config.block_size)
    labels = Labels.after(batch, blocks, config.block_size - 1)
    anchor_N = batch.ids_BT[labels.batch_N, blocks.anchor_N]
    ids_NK = drafter.block_ids(anchor_N, config.block_size)
    states_NPD = fill_blocks(drafter, batch, blocks, ids_NK)[:, 1:]
    logits_NPU = F.linear(states_NPD, drafter.target_head_UD())
    weight_NP = slot_weights(config, drafter, labels, logits_NPU)
    terms = judge_slots(drafter, batch, labels, logits_NPU, weight_NP)
    before_NP = torch.cat((anchor_N[:, None], labels.ids_NP[:, :-1]), 1)
    losses_NP, right_NP = select(drafter, labels, before_NP, states_NPD, logits_NPU)
    counting_NP = weight_NP * labels.judged_NP * drafter.is_draftable(labels.ids_NP)
    terms.loss_sum = terms.loss_sum + config.selector_weight * (losses_NP * counting_NP).sum()
    terms.correct = list((right_NP & labels.judged_NP).sum(0))
    return terms.total()


def select(
    drafter: "DFlash2Drafter", labels: Labels, before_NP: Tensor, states_NPD: Tensor, logits_NPU: Tensor
) -> tuple[Tensor, Tensor]:
    """The selector's cross-entropy at every slot, and whether it chooses the right token; both [N, P].

    Args:
        before_NP: The true token before each slot.
    """
    candidates = min(drafter.config.selector_top_k, logits_NPU.shape[-1])
    best_NPC = logits_NPU.detach().topk(candidates).indices
    gold_NP1 = drafter.to_draft_ids(labels.ids_NP)[..., None]
    missed_NP1 = (best_NPC != gold_NP1).all(-1, keepdim=True)
    taught_NPC = torch.cat((best_NPC[..., :-1], torch.where(missed_NP1, gold_NP1, best_NPC[..., -1:])), -1)
    edges_NPC = drafter.candidate_selector.edges(states_NPD, before_NP, drafter.to_target_ids(taught_NPC))
    scores_NPC = logits_NPU.gather(-1, taught_NPC) + edges_NPC
    gold_place_NP = (taught_NPC == gold_NP1).long().argmax(-1)
    losses_NP = F.cross_entropy(scores_NPC.flatten(0, 1), gold_place_NP.flatten(), reduction="none")
    right_NP = (scores_NPC.argmax(-1) == gold_place_NP) & ~missed_NP1[..., 0]
    right_NP = right_NP & drafter.is_draftable(labels.ids_NP)
    return losses_NP.view_as(right_NP), right_NP
