"""Dynamic trees against a plain reading of EAGLE-2, path by path."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.chain.branches import Branches
from eagleray.drafters.blocks.chain.drafter import ChainDrafter
from eagleray.drafters.blocks.chain.unroll import unroll
from eagleray.drafters.blocks.growing import GrowingTree
from eagleray.drafters.blocks.query_rows import QueryRows
from eagleray.drafters.catalog import build_drafter
from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.eagle.config import EagleConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.speculation.config import TreeSetting
from eagleray.speculation.trees import ANCHOR, TokenTree
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]
Observe = Callable[..., None]
Path = tuple[int, ...]
CONFIGS = {"eagle": EagleConfig(), "eagle3": Eagle3Config(draft_vocab_size=24)}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def drafter(request: pytest.FixtureRequest, heads: FrozenHeads, counts: Tensor) -> ChainDrafter:
    """With weights so large that everything a node attends to moves its children."""
    config: DrafterConfig = request.param
    drafter = build_drafter(config, heads, counts)
    assert isinstance(drafter, ChainDrafter)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.25)
    return drafter


class Reference:
    """EAGLE-2 with one training-time unroll for every path."""

    def __init__(self, drafter: ChainDrafter, batch: TrainingBatch, row: int, newest: int):
        self.drafter, self.batch, self.row, self.newest = drafter, batch, row, newest
        kept = drafter.kept_ids_U()
        self.tokens = range(40) if kept is None else kept.tolist()

    def children(self, path: Path) -> dict[int, float]:
        """Log-probability of every token after a path of drafted ones."""
        ids_BT = self.batch.ids_BT.clone()
        start = self.newest + 2
        ids_BT[self.row, start : start + len(path)] = torch.tensor(path)
        batch = replace(self.batch, ids_BT=ids_BT)
        rows = QueryRows.select(batch, 6)
        at = [(int(b), int(p)) for b, p in zip(rows.packing.batch_N, rows.position_N, strict=True)]
        with torch.no_grad():
            steps = list(unroll(self.drafter, batch, rows, len(path) + 1))
        logits_U = steps[-1][0][at.index((self.row, self.newest))]
        return dict(zip(self.tokens, logits_U.log_softmax(-1).tolist(), strict=True))

    def draft(self, depth: int, tree: TreeSetting) -> set[Path]:
        """The paths of the tree's nodes."""
        confidence: dict[Path, float] = {(): 0.0}
        level: list[Path] = [()]
        for _ in range(depth):
            grown: dict[Path, float] = {}
            for path in level:
                chances = self.children(path)
                for token in sorted(chances, key=lambda token: -chances[token])[: tree.top_k]:
                    grown[(*path, token)] = confidence[path] + chances[token]
            confidence |= grown
            level = sorted(grown, key=lambda path: -grown[path])[: tree.top_k]
        return set(sorted(confidence, key=lambda path: -confidence[path])[1 : tree.nodes + 1])


def paths_of(tree: TokenTree, row: int) -> list[Path]:
    """The path of every node, and that parents stand before their children."""
    found: list[Path] = []
    ids, parents = tree.ids_BN[row].tolist(), tree.parents_BN[row].tolist()
    for place, (token, parent) in enumerate(zip(ids, parents, strict=True)):
        assert parent < place
        found.append((*(() if parent == ANCHOR else found[parent]), token))
    return found


@pytest.mark.parametrize("setting", [TreeSetting(top_k=3, nodes=9), TreeSetting(top_k=3, nodes=60)])
def test_a_tree_holds_the_most_confident_paths_of_a_beam(
    drafter: ChainDrafter, make_batch: MakeBatch, observe: Observe, setting: TreeSetting
) -> None:
    newest = [4, 9, 2, 12]
    batch = make_batch(*[(3, 24)] * 4)
    session = drafter.open_session(4, 24)
    for row in range(4):
        observe(session, batch, row, row, 0, newest[row] + 1)
    drafted = session.draft_tree(4, 4, setting)
    for row in range(4):
        expected = Reference(drafter, batch, row, newest[row]).draft(4, setting)
        assert set(paths_of(drafted, row)) == expected


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_tree_of_width_1_is_the_chain(
    drafter: ChainDrafter, make_batch: MakeBatch, observe: Observe, depth: int
) -> None:
    batch = make_batch((3, 24), (3, 24))
    session = drafter.open_session(2, 24)
    observe(session, batch, 0, 0, 0, 5)
    observe(session, batch, 1, 1, 0, 12)
    chain = TokenTree.chain(session.draft(2, depth))
    tree = session.draft_tree(2, depth, TreeSetting(top_k=1, nodes=60))
    assert torch.equal(tree.ids_BN, chain.ids_BN)
    assert torch.equal(tree.parents_BN, chain.parents_BN)


def test_drafting_trees_leaves_what_was_committed_as_it_was(
    drafter: ChainDrafter, make_batch: MakeBatch, observe: Observe
) -> None:
    """The scratch of a wide tree is far larger than the room after the longest sequence."""
    batch = make_batch((3, 24), (3, 24))
    wide = TreeSetting(top_k=20, nodes=500)
    session = drafter.open_session(2, 24)
    for start, end in pairwise([0, 7, 8, 12]):
        for row in range(2):
            observe(session, batch, row, row, start, end)
        session.draft_tree(2, 6, wide)
    fresh = drafter.open_session(2, 24)
    for row in range(2):
        observe(fresh, batch, row, row, 0, 12)
    assert torch.equal(session.draft(2, 5), fresh.draft(2, 5))


def test_of_equally_confident_nodes_a_parent_is_kept_before_its_child() -> None:
    """A sure drafter gives probability 1, so a child is as confident as its parent."""
    growing = GrowingTree(1, torch.zeros(1))
    sure = torch.tensor([[[0.0, -math.inf, -math.inf]]])
    expanded = growing.grow(growing.root, sure, 2)
    expanded = growing.grow(expanded, sure.expand(1, 2, 3), 2)
    growing.grow(expanded, sure.expand(1, 2, 3), 2)
    for nodes in range(1, 11):
        cut = growing.cut(nodes)
        assert cut.ids_BN.shape == (1, min(nodes, 10))
        paths = paths_of(cut, 0)
        assert paths[: min(nodes, 1)] == [(0,)]
        assert {path[:-1] for path in paths} <= {(), *paths}


def test_a_branch_sees_its_ancestors_and_no_other_branch() -> None:
    branches = Branches([3, 1], torch.device("cpu"))
    places, visible = branches.extend(torch.tensor([[0, 0], [0, 0]]))
    assert places.tolist() == [[3, 4], [1, 2]]
    assert visible.mask_RQS is not None
    x, o = True, False
    assert visible.mask_RQS[1].tolist() == [[x, x, o, o, o], [x, o, x, o, o]]
    places, visible = branches.extend(torch.tensor([[1, 1], [0, 1]]))
    assert places.tolist() == [[5, 6], [3, 4]]
    assert visible.mask_RQS is not None
    assert visible.mask_RQS[0].tolist() == [[x, x, x, o, x, x, o], [x, x, x, o, x, o, x]]
    assert visible.mask_RQS[1].tolist() == [[x, x, o, x, o, o, o], [x, o, x, o, x, o, o]]
