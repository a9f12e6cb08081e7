"""One EAGLE training step: regress the target's features, and classify through its lm_head.

The feature that predicts a supervised token is that of the position before it. Noise is put on what the
layer reads, never on what it is compared with. Shapes: B batch rows, T positions, N rows that draft,
D target width, U draft vocabulary.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.base import StepTerms, TrainingBatch
from eagleray.drafters.blocks.chain.unroll import unroll
from eagleray.drafters.blocks.query_rows import QueryRows
from eagleray.drafters.blocks.seeding import sample_generator
from eagleray.drafters.blocks.teacher import Judged, SlotTerms, SoftTeacher

if TYPE_CHECKING:
    from eagleray.drafters.eagle.model import EagleDrafter


def training_step(drafter: "EagleDrafter", batch: TrainingBatch) -> StepTerms:
    """Both losses, weighted, over draft steps; step k weighted by `step_loss_decay` ** k."""
    config = drafter.config
    rows = QueryRows.select(batch, config.ttt_steps)
    teacher = SoftTeacher(drafter, batch)
    terms = SlotTerms.start(drafter.fc.weight)
    noisy = replace(batch, final_BTD=with_noise(batch, config.feature_noise))
    for step, (logits_NU, guess_ND) in enumerate(unroll(drafter, noisy, rows, config.ttt_steps)):
        batch_N, label_N = rows.packing.batch_N, rows.position_N + 2 + step
        supervised_N = rows.supervised_NK[:, step]
        judged = teacher.judge(logits_NU, batch_N, label_N, supervised_N)
        feature_MD = batch.final_BTD[batch_N[supervised_N], label_N[supervised_N] - 1]
        errors_MD = F.smooth_l1_loss(guess_ND[supervised_N], drafter.widen(feature_MD), reduction="none")
        loss_sum = (
            config.regression_weight * errors_MD.mean(-1).sum()
            + config.classification_weight * judged.loss_sum
        )
        weight_sum = judged.counted.to(loss_sum.dtype)
        both = Judged(loss_sum, weight_sum, judged.correct, judged.counted)
        terms.add(both, config.step_loss_decay**step)
    return terms.total()


def with_noise(batch: TrainingBatch, amount: float) -> Tensor:
    """The features with uniform noise of width amount * 512 / n on samples of n tokens, [B, T, D]."""
    if amount == 0:
        return batch.final_BTD
    noisy_BTD = batch.final_BTD.clone()
    for row, start, end in batch.samples:
        generator = sample_generator(batch, row, start, "feature noise")
        uniform_TD = torch.rand(end - start, noisy_BTD.shape[-1], generator=generator) - 0.5
        noisy_BTD[row, start:end] += (uniform_TD * (amount * 512 / (end - start))).to(noisy_BTD)
    return noisy_BTD
