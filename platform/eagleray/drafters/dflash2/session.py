"""Drafting with DFlash 2: one forward over the block, then a walk over the candidates of its slots.

Shapes: R drafting rows, K drafted slots, C candidates of a slot, D width.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.blocks.masked_block.session import MaskedBlockSession

if TYPE_CHECKING:
    from eagleray.drafters.dflash2.model import DFlash2Drafter


class DFlash2Session(MaskedBlockSession):
    """Chooses each slot's token given the one before it."""

    drafter: "DFlash2Drafter"

    def choose(self, states_RKD: Tensor) -> Tensor:
        """Walk from the anchor over the slots, to the best candidate of each."""
        drafter = self.drafter
        candidates = min(drafter.config.selector_top_k, len(self.head_UD))
        logits_RKC, draft_ids_RKC = F.linear(states_RKD, self.head_UD).topk(candidates)
        ids_RKC = drafter.to_target_ids(draft_ids_RKC)
        chosen = [self.anchors_R[: len(states_RKD)]]
        for slot in range(states_RKD.shape[1]):
            edges_RC = drafter.candidate_selector.edges(states_RKD[:, slot], chosen[-1], ids_RKC[:, slot])
            best_R1 = (logits_RKC[:, slot] + edges_RC).argmax(-1, keepdim=True)
            chosen.append(ids_RKC[:, slot].gather(1, best_R1)[:, 0])
        return torch.stack(chosen[1:], 1)
