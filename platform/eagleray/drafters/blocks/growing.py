"""Growing a draft tree where the drafter is sure of it (EAGLE-2, arXiv 2406.16858).

Every expanded node gets its likeliest children; of those of one level the most confident are expanded
next; of all of them the most confident are verified. Confidence is the product of the drafter's
probabilities along the path. Shapes: R rows, W nodes expanded at one level, C children of a node, X nodes
so far, N nodes kept, U draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagleray.speculation.trees import ANCHOR, TokenTree


@dataclass(frozen=True)
class Expanded:
    """The nodes of one level whose children come next."""

    node_RW: Tensor
    """Which of the tree's nodes; `ANCHOR` at the start."""
    confidence_RW: Tensor
    """Logarithm of the confidence."""
    ids_RW: Tensor
    """Draft ids."""
    parent_RW: Tensor
    """Which of the nodes expanded before is the parent of each."""


class GrowingTree:
    """All nodes so far, level by level, so that every parent stands before its children."""

    def __init__(self, rows: int, like: Tensor):
        self.ids_RX = torch.empty(rows, 0, dtype=torch.int64, device=like.device)
        self.parents_RX = self.ids_RX
        self.confidence_RX = like.new_empty(rows, 0)
        nothing_R1 = self.ids_RX.new_zeros(rows, 1)
        self.root = Expanded(nothing_R1 + ANCHOR, like.new_zeros(rows, 1), nothing_R1, nothing_R1)

    def grow(self, expanded: Expanded, logits_RWU: Tensor, top_k: int) -> Expanded:
        """Add the `top_k` likeliest children of every expanded node. Returns the `top_k` to expand next."""
        first = self.ids_RX.shape[1]
        best_RWC = logits_RWU.log_softmax(-1).topk(min(top_k, logits_RWU.shape[-1]))
        children = best_RWC.indices.shape[-1]
        ids_RX = best_RWC.indices.flatten(1)
        confidence_RX = (expanded.confidence_RW[..., None] + best_RWC.values).flatten(1)
        self.ids_RX = torch.cat((self.ids_RX, ids_RX), 1)
        self.parents_RX = torch.cat((self.parents_RX, expanded.node_RW.repeat_interleave(children, 1)), 1)
        self.confidence_RX = torch.cat((self.confidence_RX, confidence_RX), 1)
        next_RW = confidence_RX.topk(min(top_k, confidence_RX.shape[1]))
        chosen_RW = next_RW.indices
        return Expanded(first + chosen_RW, next_RW.values, ids_RX.gather(1, chosen_RW), chosen_RW // children)

    def cut(self, nodes: int) -> TokenTree:
        """Keep the `nodes` most confident nodes; the ids are still the drafter's."""
        # A child is never more confident than its parent, and a stable sort keeps the parent first where
        # they are equal, so what is kept is a tree.
        order_RX = self.confidence_RX.sort(dim=1, descending=True, stable=True).indices
        kept_RN = order_RX[:, :nodes].sort(1).values
        places_RN = torch.arange(kept_RN.shape[1], device=kept_RN.device).expand_as(kept_RN)
        place_RX = torch.full_like(self.parents_RX, ANCHOR).scatter(1, kept_RN, places_RN)
        parents_RN = self.parents_RX.gather(1, kept_RN)
        moved_RN = place_RX.gather(1, parents_RN.clamp(min=0))
        return TokenTree(self.ids_RX.gather(1, kept_RN), moved_RN.where(parents_RN != ANCHOR, ANCHOR))
