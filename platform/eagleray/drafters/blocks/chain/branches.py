"""Where the expanded nodes of a draft tree lie in the cache, and which of them see each other.

Shapes: R rows, W nodes expanded at one level, Y nodes expanded so far, S cached positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagleray.drafters.blocks.kv_cache import Visible


class Branches:
    """Where the keys of expanded nodes lie behind a row's committed ones, and which nodes see them."""

    def __init__(self, lengths: Sequence[int], device: torch.device):
        self.longest = max(lengths)
        self.lengths_R1 = torch.tensor(lengths, device=device)[:, None]
        self.seen_RWY = torch.empty(len(lengths), 1, 0, dtype=torch.bool, device=device)

    def extend(self, parent_RW: Tensor) -> tuple[Tensor, Visible]:
        """Take in a level, each node after one of the level before. Returns the places of its keys in the
        cache [R, W], and what it sees: committed positions, its ancestors and itself."""
        rows, width = parent_RW.shape
        before = self.seen_RWY.shape[-1]
        inherited_RWY = self.seen_RWY.gather(1, parent_RW[..., None].expand(-1, -1, before))
        own_RWW = torch.eye(width, dtype=torch.bool, device=parent_RW.device).expand(rows, -1, -1)
        self.seen_RWY = torch.cat((inherited_RWY, own_RWW), -1)
        places_RY = self.lengths_R1 + torch.arange(before + width, device=parent_RW.device)
        longest = self.longest + before + width
        committed_RS = torch.arange(longest, device=parent_RW.device) < self.lengths_R1
        mask_RWS = committed_RS[:, None].repeat(1, width, 1)
        mask_RWS.scatter_(2, places_RY[:, None].expand_as(self.seen_RWY), self.seen_RWY)
        return places_RY[:, before:], Visible(longest, mask_RWS)
