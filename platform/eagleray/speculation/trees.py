"""Draft trees: who follows whom, and the one path that the target walks.

A tree branches where a drafter is unsure: several tokens may follow the same one. The target verifies
all nodes in one forward, in which a node sees the sequence, its ancestors and itself (SpecInfer, arXiv
2305.09781; dynamic trees: EAGLE-2, arXiv 2406.16858). A chain is a tree of width 1.
Shapes: B rows, N draft nodes, P = N + 1 verified positions (the anchor's, then each node's), K draft
slots of a chain.
"""

from typing import NamedTuple

import torch
from torch import Tensor

ANCHOR = -1
"""Parent of the nodes that follow the anchor."""


class TokenTree(NamedTuple):
    """What a drafter proposes for each row. Padding lies behind a row's nodes."""

    ids_BN: Tensor
    """int64 target ids; negative where a row has no further node."""

    parents_BN: Tensor
    """int64: the node that each node follows, `ANCHOR` or one that stands before it. `ANCHOR` in padding."""

    @classmethod
    def chain(cls, draft_BK: Tensor) -> "TokenTree":
        """The tree of width 1 that a chain is. A negative id ends a shorter draft."""
        proposed_BK = (draft_BK >= 0).long().cumprod(dim=1).bool()
        previous_K = torch.arange(draft_BK.shape[1], device=draft_BK.device) - 1
        return cls(draft_BK.where(proposed_BK, -1), previous_K.where(proposed_BK, ANCHOR))

    def ancestry(self) -> Tensor:
        """bool [B, P, P]: [b, p, a] tells whether position a is an ancestor of p, as the anchor is, or p."""
        rows, nodes = self.parents_BN.shape
        seen_BPP = torch.eye(nodes + 1, device=self.parents_BN.device).repeat(rows, 1, 1)
        seen_BPP[:, 1:].scatter_(2, self.parents_BN[..., None] + 1, 1.0)
        # Each product doubles how far up a position sees.
        for _ in range(nodes.bit_length()):
            seen_BPP = (seen_BPP @ seen_BPP).clamp_(max=1.0)
        return seen_BPP.bool()

    def trimmed(self) -> "TokenTree":
        """Without the columns in which every row is padded."""
        width = int((self.ids_BN >= 0).sum(dim=1).max())
        return TokenTree(self.ids_BN[:, :width], self.parents_BN[:, :width])


class TreeVerdict(NamedTuple):
    """Outcome of one verification."""

    accepted_B: Tensor
    """Accepted draft tokens: the length of the accepted path without the anchor."""

    committed_BP: Tensor
    """The first accepted + 1 ids of a row are committed: its accepted tokens, then the bonus token.
    The rest repeats the bonus token."""

    path_BP: Tensor
    """The first accepted + 1 positions are the accepted path, anchor first. The rest repeats its end."""


def verify_tree(tree: TokenTree, target_BP: Tensor, ancestry_BPP: Tensor) -> TreeVerdict:
    """Walk down from the anchor to the node that says what the target says, until there is none.

    The target's token at each position is its likeliest, or one drawn from its distribution there. The
    latter is the rule of recursive rejection for drafts that involve no chance: trying the children of a
    node in turn, each accepted with its share of what the refused ones left over, accepts a child x with
    probability p(x) and leaves p without the children to the bonus token. All positions of one depth may
    use the same random number, as the walk reaches one of them. Either way the ids are those that the
    target would give without a draft.
    """
    says_BN = target_BP.gather(1, tree.parents_BN + 1)
    fits_BP = torch.nn.functional.pad(tree.ids_BN == says_BN, (1, 0), value=True)
    reached_BP = (fits_BP[:, None, :] | ~ancestry_BPP).all(dim=-1)
    accepted_B, ends_B = depths(ancestry_BPP).where(reached_BP, -1).max(dim=1)
    rows_B = torch.arange(len(ends_B), device=ends_B.device)
    path_BP = paths(ancestry_BPP[rows_B, ends_B])
    return TreeVerdict(accepted_B, target_BP.gather(1, path_BP), path_BP)


def depths(ancestry_BPP: Tensor) -> Tensor:
    """Tokens between each position and the anchor, itself included: 0 for the anchor."""
    return ancestry_BPP.sum(dim=-1) - 1


def paths(ancestry: Tensor) -> Tensor:
    """The ancestors of a position in order, from [..., P] whether each is one; the rest repeats the last."""
    positions_P = torch.arange(ancestry.shape[-1], device=ancestry.device)
    # A parent stands before its children, so the order of positions is that of the path.
    last = positions_P.where(ancestry, 0).amax(dim=-1, keepdim=True)
    return positions_P.where(ancestry, last).sort(dim=-1).values
