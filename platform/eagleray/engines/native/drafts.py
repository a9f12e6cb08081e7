"""What one cycle proposes: a chain or a tree for every row, and how deep each row's is judged.

Shapes: B rows, K slots of a chain, N draft nodes (the slots of a chain), P = N + 1 verified positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagleray.drafters.base import NO_DRAFT, DrawnDraft
from eagleray.speculation.trees import TokenTree, TreeVerdict, depths, verify_tree
from eagleray.speculation.verification import ChainVerdict, verify_chain


@dataclass(frozen=True)
class ChainDraft:
    """One token after another."""

    ids_BN: Tensor
    levels: list[int]
    """Draft tokens on the longest path of each row that may still be committed."""
    ancestry_BPP: None = None
    depths_BP: None = None

    @classmethod
    def within(cls, draft_BK: Tensor, limits: Sequence[int]) -> "ChainDraft":
        """Judge each row up to its limit and to its first empty slot."""
        levels = [
            min(limit, ids.index(NO_DRAFT) if NO_DRAFT in ids else len(ids))
            for limit, ids in zip(limits, draft_BK.tolist(), strict=True)
        ]
        return cls(draft_BK[:, : max(levels)], levels)

    @classmethod
    def nothing(cls, rows: int, device: torch.device) -> "ChainDraft":
        """Plain decoding."""
        return cls(torch.empty(rows, 0, dtype=torch.int64, device=device), [0] * rows)

    def ancestry(self, slot: int) -> Tensor:
        """bool [P, P]; which positions of a row are ancestors of which, or the same."""
        positions = self.ids_BN.shape[1] + 1
        return torch.ones(positions, positions, dtype=torch.bool, device=self.ids_BN.device).tril()

    def verify(self, target_BP: Tensor) -> ChainVerdict:
        """Compare with what the target says at each position."""
        return verify_chain(self.ids_BN, target_BP)


@dataclass(frozen=True)
class DrawnChain(ChainDraft):
    """A chain whose tokens were drawn."""

    probabilities_BNV: Tensor = field(kw_only=True)
    """What each was drawn from."""

    @classmethod
    def up_to(cls, drawn: DrawnDraft, limits: Sequence[int]) -> "DrawnChain":
        """Judge each row up to its limit."""
        deepest = max(limits)
        shares_BNV = drawn.probabilities_BKV[:, :deepest]
        return cls(drawn.ids_BK[:, :deepest], list(limits), probabilities_BNV=shares_BNV)


@dataclass(frozen=True)
class TreeDraft:
    """Tokens that branch; see `TokenTree`."""

    tree: TokenTree
    levels: list[int]
    """Draft tokens on the longest path of each row that may still be committed."""
    ancestry_BPP: Tensor
    depths_BP: Tensor
    """Draft tokens between each position and the anchor, itself included."""

    @classmethod
    def within(cls, tree: TokenTree, limits: Sequence[int]) -> "TreeDraft":
        """Judge each row up to its limit and to its deepest node."""
        tree = tree.trimmed()
        ancestry_BPP = tree.ancestry()
        depths_BP = depths(ancestry_BPP)
        real_BP = torch.nn.functional.pad(tree.ids_BN >= 0, (1, 0), value=True)
        deepest = depths_BP.where(real_BP, 0).amax(dim=1).tolist()
        levels = [min(limit, depth) for limit, depth in zip(limits, deepest, strict=True)]
        return cls(tree, levels, ancestry_BPP, depths_BP)

    @property
    def ids_BN(self) -> Tensor:
        """Ids of the nodes."""
        return self.tree.ids_BN

    def ancestry(self, slot: int) -> Tensor:
        """bool [P, P]; which positions of a row are ancestors of which, or the same."""
        return self.ancestry_BPP[slot]

    def verify(self, target_BP: Tensor) -> TreeVerdict:
        """Walk where the target goes."""
        return verify_tree(self.tree, target_BP, self.ancestry_BPP)
