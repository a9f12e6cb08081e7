"""Drawing a draft slot by slot, and remembering what from.

Shapes: R rows, K slots drawn at once, U draft vocabulary, V target vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagleray.drafters.base import DrawnDraft
from eagleray.drafters.blocks.headed import HeadedDrafter
from eagleray.speculation.config import SamplingConfig
from eagleray.speculation.sampling import draw, probabilities


class Drawer:
    """Draws the draft of some rows.

    Args:
        uniforms_RK: The random number of each slot of the whole draft.
    """

    def __init__(self, samplings: Sequence[SamplingConfig], uniforms_RK: Tensor):
        self._samplings = samplings
        self._uniforms_RK = uniforms_RK
        self._drawn_from: list[Tensor] = []

    def __call__(self, logits_RKU: Tensor) -> Tensor:
        """Draft ids [R, K] of the next slots."""
        first = sum(drawn.shape[1] for drawn in self._drawn_from)
        shares_RKU = probabilities(logits_RKU, self._samplings)
        self._drawn_from.append(shares_RKU)
        return draw(shares_RKU, self._uniforms_RK[:, first : first + logits_RKU.shape[1]])

    def draft(self, ids_RK: Tensor, drafter: HeadedDrafter) -> DrawnDraft:
        """What was drawn.

        Args:
            ids_RK: Target ids.
        """
        shares_RKU, kept_U = torch.cat(self._drawn_from, 1), drafter.kept_ids_U()
        if kept_U is None:
            return DrawnDraft(ids_RK, shares_RKU)
        shares_RKV = shares_RKU.new_zeros(*ids_RK.shape, drafter.heads.geometry.vocab_size)
        return DrawnDraft(ids_RK, shares_RKV.index_copy_(-1, kept_U, shares_RKU))
