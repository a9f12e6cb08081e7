"""One DFlash training step: blocks at random anchors of each sequence, all in one forward.

Slot k of a block is judged by the token k after the anchor. In a parallel block it is the mask in
that slot that predicts it; token by token it is the token before, so the last slot is left out.
Shapes: C samples that have blocks, N blocks of all samples, K slots of a block, P = K - 1 predicted slots,
A blocks of one sample.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.base import StepTerms, TrainingBatch
from eagleray.drafters.blocks.masked_block.context import Blocks
from eagleray.drafters.blocks.masked_block.step import Labels, fill_blocks, judge_slots, slot_weights
from eagleray.drafters.blocks.seeding import sample_generator

if TYPE_CHECKING:
    from eagleray.drafters.dflash.config import DFlashConfig
    from eagleray.drafters.dflash.model import DFlashDrafter


def training_step(drafter: "DFlashDrafter", batch: TrainingBatch) -> StepTerms:
    """Cross-entropy of the slots after the anchor of every block."""
    config = drafter.config
    predicted = config.block_size - 1
    size = config.block_size if config.parallel_block else predicted
    blocks = Blocks.choose(batch, config.num_anchors, size)
    labels = Labels.after(batch, blocks, predicted)
    anchor_N = batch.ids_BT[labels.batch_N, blocks.anchor_N]
    if config.parallel_block:
        ids_NK = drafter.block_ids(anchor_N, size)
        if config.denoise_steps > 1:
            kept_NP = choose_kept(config, batch, blocks, labels)
            ids_NK[:, 1:] = torch.where(kept_NP, labels.ids_NP, drafter.mask_token_id)
            labels = replace(labels, judged_NP=labels.judged_NP & ~kept_NP)
        states_NPD = fill_blocks(drafter, batch, blocks, ids_NK)[:, 1:]
    else:
        ids_NK = torch.cat((anchor_N[:, None], labels.ids_NP[:, :-1]), 1)
        states_NPD = fill_blocks(drafter, batch, blocks, ids_NK)
    logits_NPU = F.linear(states_NPD, drafter.target_head_UD())
    weight_NP = slot_weights(config, drafter, labels, logits_NPU)
    return judge_slots(drafter, batch, labels, logits_NPU, weight_NP).total()


def choose_kept(config: "DFlashConfig", batch: TrainingBatch, blocks: Blocks, labels: Labels) -> Tensor:
    """Rehearse a random denoising step in each block: random slots hold their token already.

    Slots past the end of the sample stay masked. Returns bool [N, P].
    """
    slots = labels.ids_NP.shape[1]
    kept_after = torch.tensor([config.kept_slots(slots, step) for step in range(config.denoise_steps)])
    chosen: list[Tensor] = [torch.zeros(0, slots, dtype=torch.bool)]
    of_2N = torch.stack((labels.batch_N, blocks.start_N))
    of_2C, counts_C = of_2N.unique_consecutive(return_counts=True, dim=1)
    for row, start, count in torch.cat((of_2C, counts_C[None])).T.tolist():
        generator = sample_generator(batch, row, start, "denoising")
        step_A = torch.randint(config.denoise_steps, (count,), generator=generator)
        rank_AP = torch.rand(count, slots, generator=generator).argsort(1).argsort(1)
        chosen.append(rank_AP < kept_after[step_A][:, None])
    inside_NP = labels.position_NP < batch.ends_BT[labels.batch_N, blocks.anchor_N, None]
    return torch.cat(chosen).to(inside_NP.device) & inside_NP
