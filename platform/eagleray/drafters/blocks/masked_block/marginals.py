"""Drafting with blocks whose slots know nothing of each other's tokens.

One forward gives the distribution of every slot, so a tree costs no more than a chain: the confidence of a
path is the product of its slots' probabilities (DDTree, arXiv 2604.12989).
Shapes: R drafting rows, K drafted slots, W nodes expanded at one level, U draft vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.base import DrawnDraft
from eagleray.drafters.blocks.drawer import Drawer
from eagleray.drafters.blocks.growing import GrowingTree
from eagleray.drafters.blocks.masked_block.session import MaskedBlockSession
from eagleray.speculation.config import SamplingConfig, TreeSetting
from eagleray.speculation.trees import TokenTree


class MarginalSession(MaskedBlockSession):
    """Takes a block's slots as independent, which its one forward makes them."""

    @torch.inference_mode()
    def draft_tree(self, num_rows: int, depth: int, tree: TreeSetting) -> TokenTree:
        """The likeliest paths through the slots."""
        paths = likeliest_paths(self._logits(num_rows, depth), tree)
        return paths._replace(ids_BN=self.drafter.to_target_ids(paths.ids_BN))

    @torch.inference_mode()
    def draw(
        self, num_rows: int, depth: int, samplings: Sequence[SamplingConfig], uniforms_RK: Tensor
    ) -> DrawnDraft:
        """Every slot by itself."""
        drawer = Drawer(samplings, uniforms_RK)
        ids_RK = self.drafter.to_target_ids(drawer(self._logits(num_rows, depth)))
        return drawer.draft(ids_RK, self.drafter)

    def _logits(self, num_rows: int, depth: int) -> Tensor:
        """[R, K, U]."""
        ids_RQ = self.drafter.block_ids(self.anchors_R[:num_rows], depth + 1)
        return F.linear(self.run(ids_RQ, 0)[:, 1:], self.head_UD)


def likeliest_paths(logits_RKU: Tensor, tree: TreeSetting) -> TokenTree:
    """The tree of the most confident nodes, where every node of a level has the same children; draft ids."""
    growing = GrowingTree(len(logits_RKU), logits_RKU)
    expanded = growing.root
    for slot in range(logits_RKU.shape[1]):
        width = expanded.node_RW.shape[1]
        expanded = growing.grow(expanded, logits_RKU[:, slot : slot + 1].expand(-1, width, -1), tree.top_k)
    return growing.cut(tree.nodes)
