"""What a prediction is judged against: the token the target emitted, or its whole distribution.

A prediction is judged only where its token is supervised; where the drafter cannot propose that
token it carries no loss and counts as wrong. Shapes: B batch rows, T positions, P supervised tokens,
N predictions, D target width, U draft vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.base import StepTerms, TrainingBatch
from eagleray.drafters.blocks.headed import HeadedDrafter


@dataclass(frozen=True)
class Judged:
    """Sums over the supervised predictions of one draft slot."""

    loss_sum: Tensor
    weight_sum: Tensor
    correct: Tensor
    counted: Tensor


class Teacher(ABC):
    """Judges predictions of the tokens of one batch."""

    def __init__(self, drafter: HeadedDrafter, batch: TrainingBatch):
        self.drafter = drafter
        self.ids_BT = batch.ids_BT

    def judge(
        self,
        logits_NU: Tensor,
        batch_N: Tensor,
        position_N: Tensor,
        supervised_N: Tensor,
        weight_N: Tensor | None = None,
    ) -> Judged:
        """Judge predictions of the tokens at (batch, position), where they are supervised.

        Args:
            weight_N: What each prediction weighs in the loss. None: all the same.
        """
        index_N = supervised_N.nonzero().flatten()
        batch_N, position_N = batch_N[index_N], position_N[index_N]
        logits_NU = logits_NU.index_select(0, index_N)
        label_N = self.ids_BT[batch_N, position_N]
        counting_N = self.drafter.is_draftable(label_N).to(logits_NU.dtype)
        if weight_N is not None:
            counting_N = counting_N * weight_N.index_select(0, index_N)
        losses_N = self._losses(logits_NU, batch_N, position_N, label_N)
        correct = (self.drafter.to_target_ids(logits_NU.detach().argmax(-1)) == label_N).sum()
        return Judged((losses_N * counting_N).sum(), counting_N.sum(), correct, supervised_N.sum())

    @abstractmethod
    def _losses(self, logits_NU: Tensor, batch_N: Tensor, position_N: Tensor, label_N: Tensor) -> Tensor: ...


class HardTeacher(Teacher):
    """Cross-entropy with the emitted token."""

    def _losses(self, logits_NU: Tensor, batch_N: Tensor, position_N: Tensor, label_N: Tensor) -> Tensor:
        return F.cross_entropy(logits_NU, self.drafter.to_draft_ids(label_N), reduction="none")


class SoftTeacher(Teacher):
    """Cross-entropy with the target's distribution, renormalised over the draft vocabulary.

    The target's logits are computed once per supervised token, from the final state at the position
    before it, and only for the rows of its lm_head that the drafter can propose.
    """

    @torch.no_grad()
    def __init__(self, drafter: HeadedDrafter, batch: TrainingBatch):
        super().__init__(drafter, batch)
        positions_T = torch.arange(batch.ids_BT.shape[1], device=batch.ids_BT.device)
        labels_BT = batch.supervised_BT & (positions_T > batch.starts_BT)
        batch_P, position_P = labels_BT.nonzero(as_tuple=True)
        final_PD = drafter.widen(batch.final_BTD[batch_P, position_P - 1])
        self.probabilities_PU = F.linear(final_PD, drafter.target_head_UD()).softmax(-1)
        self.index_BT = torch.zeros_like(batch.ids_BT)
        self.index_BT[batch_P, position_P] = torch.arange(len(batch_P), device=batch_P.device)

    def _losses(self, logits_NU: Tensor, batch_N: Tensor, position_N: Tensor, label_N: Tensor) -> Tensor:
        target_NU = self.probabilities_PU.index_select(0, self.index_BT[batch_N, position_N])
        return logits_NU.logsumexp(-1) - (target_NU * logits_NU).sum(-1)


@dataclass
class SlotTerms:
    """Running loss of a training step, slot by slot."""

    loss_sum: Tensor
    weight_sum: Tensor
    correct: list[Tensor]
    counted: list[Tensor]

    @classmethod
    def start(cls, like: Tensor) -> "SlotTerms":
        """Nothing judged yet."""
        return cls(like.new_zeros(()), like.new_zeros(()), [], [])

    def add(self, judged: Judged, weight: float = 1.0) -> None:
        """Add the next slot, whose predictions count `weight` times."""
        self.loss_sum = self.loss_sum + weight * judged.loss_sum
        self.weight_sum = self.weight_sum + weight * judged.weight_sum
        self.correct.append(judged.correct)
        self.counted.append(judged.counted)

    def total(self) -> StepTerms:
        """The terms of the whole step."""
        return StepTerms(
            loss_sum=self.loss_sum,
            weight_sum=self.weight_sum,
            correct_K=torch.stack(self.correct),
            counted_K=torch.stack(self.counted),
        )
