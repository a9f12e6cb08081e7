"""Trees from the marginals of a block: the nodes that a search over all paths would keep."""

from itertools import product

import pytest
import torch

from eagleray.drafters.blocks.masked_block.marginals import likeliest_paths
from eagleray.speculation.config import TreeSetting

TOKENS, SLOTS = 4, 3


def kept_paths(tree, row):
    """Each kept node as the tokens from the anchor to it."""
    paths = []
    for token, parent in zip(tree.ids_BN[row].tolist(), tree.parents_BN[row].tolist(), strict=True):
        paths.append((*(() if parent < 0 else paths[parent]), token))
    return paths


@pytest.mark.parametrize("nodes", [1, 3, 8, 20])
def test_the_kept_nodes_are_the_likeliest_of_all_paths(nodes):
    logits_RKU = torch.randn(5, SLOTS, TOKENS, generator=torch.Generator().manual_seed(nodes)) * 2
    tree = likeliest_paths(logits_RKU, TreeSetting(top_k=TOKENS**SLOTS, nodes=nodes))
    for row, logits_KU in enumerate(logits_RKU):
        shares = logits_KU.softmax(-1)
        every = [path for length in range(1, SLOTS + 1) for path in product(range(TOKENS), repeat=length)]
        every.sort(key=lambda path: -torch.stack([shares[at] for at in enumerate(path)]).prod().item())
        assert set(kept_paths(tree, row)) == set(every[:nodes])


def test_a_path_is_as_sure_as_its_tokens():
    """0.9, 0.81, 0.486 and 0.324 are surer than a second token in the first slot (0.1) or the second
    (0.09)."""
    shares = torch.tensor([[[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]])
    tree = likeliest_paths(shares.log(), TreeSetting(top_k=2, nodes=4))
    assert set(kept_paths(tree, 0)) == {(0,), (0, 0), (0, 0, 0), (0, 0, 1)}
