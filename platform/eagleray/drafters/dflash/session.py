"""The ways to draft that take several forwards: denoising a block in steps, and token by token.

Shapes: R drafting rows, K drafted slots.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.blocks.masked_block.session import MaskedBlockSession

if TYPE_CHECKING:
    from eagleray.drafters.dflash.model import DFlashDrafter


class DenoisingSession(MaskedBlockSession):
    """Fills a block in `denoise_steps` forwards, the surest slots first."""

    drafter: "DFlashDrafter"

    @torch.inference_mode()
    def draft(self, num_rows: int, depth: int) -> Tensor:
        """After each forward the slots with the highest probability keep their tokens for the next."""
        drafter, config = self.drafter, self.drafter.config
        ids_RK = drafter.block_ids(self.anchors_R[:num_rows], depth + 1)
        kept_RK = torch.zeros_like(ids_RK[:, 1:], dtype=torch.bool)
        for step in range(1, config.denoise_steps + 1):
            logits = F.linear(self.run(ids_RK, 0)[:, 1:], self.head_UD)
            confidence_RK, choice_RK = logits.softmax(-1).max(-1)
            filled_RK = torch.where(kept_RK, ids_RK[:, 1:], drafter.to_target_ids(choice_RK))
            # A kept slot stays kept: no probability exceeds 1.
            surest_RK = confidence_RK.masked_fill(kept_RK, 2.0)
            kept = surest_RK.topk(config.kept_slots(depth, step), 1).indices
            kept_RK = torch.zeros_like(kept_RK).scatter(1, kept, True)
            ids_RK[:, 1:] = torch.where(kept_RK, filled_RK, drafter.mask_token_id)
        return ids_RK[:, 1:]


class AutoregressiveSession(MaskedBlockSession):
    """Drafts token by token; keys of the drafted ones stand behind the committed ones."""

    @torch.inference_mode()
    def draft(self, num_rows: int, depth: int) -> Tensor:
        """Greedy chain: slot k holds the token k after the anchor and yields the next one."""
        tokens_R1 = self.anchors_R[:num_rows, None]
        drafted: list[Tensor] = []
        for slot in range(depth):
            tokens_R1 = self.choose(self.run(tokens_R1, slot))
            drafted.append(tokens_R1)
        return torch.cat(drafted, 1)
