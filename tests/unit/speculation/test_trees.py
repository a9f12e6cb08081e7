"""Trees by hand, against a walk, against chains, and as exact distributions."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagleray.speculation.sampling import draw
from eagleray.speculation.trees import TokenTree, depths, paths, verify_tree
from eagleray.speculation.verification import verify_chain

TOKENS = 3
EIGHTHS = [(k + 0.5) / 8 for k in range(8)]


def make_tree(*rows: list[tuple[int, int]]) -> TokenTree:
    """From (id, parent) of each node."""
    width = max(map(len, rows))
    padded = [[*row, *[(-1, -1)] * (width - len(row))] for row in rows]
    ids_BN, parents_BN = torch.tensor(padded, dtype=torch.int64).reshape(len(rows), width, 2).unbind(-1)
    return TokenTree(ids_BN, parents_BN)


# Two children of the anchor; the second one branches, and one of its children goes on.
BRANCHED = [(5, -1), (7, -1), (8, 1), (9, 1), (6, 3)]


def verify(tree: TokenTree, target: list[list[int]]):
    return verify_tree(tree, torch.tensor(target), tree.ancestry())


def test_every_position_sees_its_ancestors_and_itself():
    (seen_PP,) = make_tree(BRANCHED).ancestry()
    assert [row.nonzero()[:, 0].tolist() for row in seen_PP] == [
        [0],
        [0, 1],
        [0, 2],
        [0, 2, 3],
        [0, 2, 4],
        [0, 2, 4, 5],
    ]
    assert depths(seen_PP).tolist() == [0, 1, 1, 2, 2, 3]
    assert paths(seen_PP)[4].tolist() == [0, 2, 4, 4, 4, 4]


def test_the_accepted_path_is_where_the_target_walks():
    tree = make_tree(BRANCHED, BRANCHED, BRANCHED, BRANCHED[:1])
    target = [
        # The anchor is followed by 7, that by 9, that by 6, and that by 1.
        [7, 0, 9, 0, 6, 1],
        [7, 0, 4, 0, 6, 1],
        [3, 0, 9, 0, 6, 1],
        [5, 2, 0, 0, 0, 0],
    ]
    verdict = verify(tree, target)
    assert verdict.accepted_B.tolist() == [3, 1, 0, 1]
    assert verdict.path_BP.tolist() == [
        [0, 2, 4, 5, 5, 5],
        [0, 2, 2, 2, 2, 2],
        [0, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 1, 1],
    ]
    assert verdict.committed_BP.tolist() == [
        [7, 9, 6, 1, 1, 1],
        [7, 4, 4, 4, 4, 4],
        [3] * 6,
        [5, 2, 2, 2, 2, 2],
    ]


def test_a_tree_without_nodes_commits_the_bonus_token():
    verdict = verify(make_tree([], []), [[4], [2]])
    assert (verdict.accepted_B.tolist(), verdict.committed_BP.tolist()) == ([0, 0], [[4], [2]])


def test_columns_of_padding_alone_are_trimmed():
    tree = make_tree(BRANCHED[:2], BRANCHED[:1])
    padded = TokenTree(*(torch.nn.functional.pad(part, (0, 3), value=-1) for part in tree))
    assert all(torch.equal(one, other) for one, other in zip(padded.trimmed(), tree, strict=True))
    assert make_tree([(-1, -1)]).trimmed().ids_BN.shape == (1, 0)


random_trees = st.integers(0, 9).flatmap(
    lambda nodes: st.tuples(
        st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes),
        st.tuples(*[st.integers(-1, node - 1) for node in range(nodes)]),
        st.lists(st.integers(0, 2), min_size=nodes + 1, max_size=nodes + 1),
    )
)


@given(random_trees, st.integers(0, 3))
def test_a_walk_from_node_to_node_commits_the_same(case, padding):
    """Siblings of the same token may differ below; no other path of the target's tokens is longer."""
    ids, parents, target = case

    def walk(position: int) -> list[int]:
        said = target[position]
        children = [
            node for node, parent in enumerate(parents) if parent == position - 1 and ids[node] == said
        ]
        return [said, *max((walk(node + 1) for node in children), key=len, default=[])]

    tree = make_tree([*zip(ids, parents, strict=True), *[(-1, -1)] * padding])
    verdict = verify(tree, [[*target, *[0] * padding]])
    (accepted,) = verdict.accepted_B.tolist()
    assert len(walk(0)) == accepted + 1
    path = verdict.path_BP[0].tolist()
    assert verdict.committed_BP[0].tolist() == [target[position] for position in path]
    for position, following in pairwise(path[: accepted + 1]):
        assert parents[following - 1] == position - 1
        assert ids[following - 1] == target[position]


@given(
    st.integers(1, 6).flatmap(
        lambda k: st.tuples(
            st.lists(st.integers(-1, 2), min_size=k, max_size=k),
            st.lists(st.integers(0, 2), min_size=k + 1, max_size=k + 1),
        )
    )
)
def test_a_chain_is_a_tree_of_width_one(case):
    draft_BK, target_BP = (torch.tensor([ids]) for ids in case)
    tree = TokenTree.chain(draft_BK)
    verdict, expected = verify(tree, target_BP.tolist()), verify_chain(draft_BK, target_BP)
    assert torch.equal(verdict.accepted_B, expected.accepted_B)
    assert torch.equal(verdict.committed_BP, expected.committed_BP)
    assert verdict.path_BP[0].tolist() == [
        min(place, int(expected.accepted_B)) for place in range(target_BP.shape[1])
    ]


def target_probabilities(prefix: tuple[int, ...]) -> list[float]:
    """A distribution in eighths that differs with every prefix."""
    first = 1 + (len(prefix) + 2 * sum(prefix)) % 5
    second = 1 + (3 * len(prefix) + sum(prefix)) % (7 - first)
    return [first / 8, second / 8, (8 - first - second) / 8]


def answer(uniforms: tuple[float, ...], shape: list[tuple[int, int]]) -> tuple[tuple[int, ...], int]:
    """The first tokens of an answer, one number for each place; and what the first cycle accepted."""
    ids: tuple[int, ...] = ()
    first_accepted = -1
    while len(ids) < len(uniforms):
        tree = make_tree([(token, parent) for token, parent in shape])
        ancestry_BPP = tree.ancestry()
        said = [[tree.ids_BN[0, node - 1].item() for node in path[1:]] for path in path_lists(ancestry_BPP)]
        target_BPV = torch.tensor([[target_probabilities((*ids, *tokens)) for tokens in said]])
        numbers = torch.tensor([*uniforms[len(ids) :], 0.5, 0.5])
        target_BP = draw(target_BPV.double(), numbers[depths(ancestry_BPP)].double())
        verdict = verify_tree(tree, target_BP, ancestry_BPP)
        if first_accepted < 0:
            first_accepted = int(verdict.accepted_B)
        ids += tuple(verdict.committed_BP[0, : verdict.accepted_B[0] + 1].tolist())
    return ids[: len(uniforms)], first_accepted


def path_lists(ancestry_BPP: torch.Tensor) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in ancestry_BPP[0]]


SHAPES = {
    "none": [],
    "chain": [(0, -1), (1, 0)],
    "two siblings": [(1, -1), (2, -1)],
    "branches on both levels": [(0, -1), (2, -1), (1, 0), (2, 0), (0, 1)],
    "every token": [(0, -1), (1, -1), (2, -1), (0, 2), (1, 2), (2, 2)],
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_tree_leaves_the_targets_distribution_and_even_its_ids(shape):
    """Summed over every cell of a grid of eighths, on which all probabilities lie."""
    seen = dict.fromkeys(product(range(TOKENS), repeat=3), 0.0)
    for uniforms in product(EIGHTHS, repeat=3):
        ids, _ = answer(uniforms, shape)
        assert ids == answer(uniforms, [])[0]
        seen[ids] += 1 / 8**3
    for ids, share in seen.items():
        expected = 1.0
        for place, token in enumerate(ids):
            expected *= target_probabilities(ids[:place])[token]
        assert share == pytest.approx(expected)


def test_siblings_are_accepted_as_often_as_recursive_rejection_accepts_them():
    """The first with p(x); the second with what is left to it, p(y) / (1 - p(x)) of 1 - p(x)."""
    accepted = sum(answer((uniform,), [(1, -1), (2, -1)])[1] for uniform in EIGHTHS) / 8
    p = target_probabilities(())
    assert accepted == pytest.approx(p[1] + (1 - p[1]) * p[2] / (1 - p[1]))
