"""Random targets and drafters: the joint distribution of three tokens, summed over every draw.

A target's probabilities are quarters and a token's random number takes the middle of each quarter, so
64 combinations of three numbers are all there is to draw: their answers are the distribution, without
noise. Shapes: V vocabulary.
"""

import random
from itertools import product

import pytest
import torch

from eagleray.speculation.sampling import draw
from eagleray.speculation.trees import ANCHOR, TokenTree, verify_tree
from eagleray.speculation.verification import verify_chain

V = 3
TOKENS = 3
QUARTERS = [(k + 0.5) / 4 for k in range(4)]
Prefix = tuple[int, ...]


class Pair:
    """A target that depends on everything before, and a drafter that involves no chance."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.depth = self.random.randint(1, 4)
        self._shares: dict[Prefix, list[float]] = {}
        self._proposals: dict[Prefix, int] = {}
        self._drawn: dict[tuple[Prefix, float], int] = {}

    def target(self, prefix: Prefix) -> list[float]:
        if prefix not in self._shares:
            cuts = sorted(self.random.choices(range(5), k=V - 1))
            bounds = [0, *cuts, 4]
            self._shares[prefix] = [(bounds[k + 1] - bounds[k]) / 4 for k in range(V)]
        return self._shares[prefix]

    def propose(self, prefix: Prefix) -> int:
        return self._proposals.setdefault(prefix, self.random.randrange(V))

    def says(self, prefix: Prefix, uniforms: tuple[float, ...]) -> int:
        """The target's token after a prefix: every place of an answer has its own number."""
        number = uniforms[len(prefix)] if len(prefix) < TOKENS else 0.5
        if (prefix, number) not in self._drawn:
            shares_V = torch.tensor(self.target(prefix), dtype=torch.float64)
            self._drawn[prefix, number] = int(draw(shares_V, torch.tensor(number)))
        return self._drawn[prefix, number]


def chain_cycle(pair: Pair, prefix: Prefix, uniforms: tuple[float, ...]) -> Prefix:
    draft: list[int] = []
    for _ in range(pair.depth):
        draft.append(pair.propose(prefix + tuple(draft)))
    target = [pair.says(prefix + tuple(draft[:slot]), uniforms) for slot in range(pair.depth + 1)]
    verdict = verify_chain(torch.tensor([draft]), torch.tensor([target]))
    return tuple(verdict.committed_BP[0, : int(verdict.accepted_B) + 1].tolist())


def tree_cycle(pair: Pair, prefix: Prefix, uniforms: tuple[float, ...]) -> Prefix:
    """Two different children for the anchor, and a chain below the first."""
    first = pair.propose(prefix)
    paths: list[Prefix] = [(first,), ((first + 1) % V,)]
    parents = [ANCHOR, ANCHOR]
    for level in range(1, pair.depth):
        above = paths[0] if level == 1 else paths[-1]
        parents.append(0 if level == 1 else len(paths) - 1)
        paths.append((*above, pair.propose(prefix + above)))
    tree = TokenTree(torch.tensor([[path[-1] for path in paths]]), torch.tensor([parents]))
    target = [pair.says(prefix + path, uniforms) for path in [(), *paths]]
    verdict = verify_tree(tree, torch.tensor([target]), tree.ancestry())
    return tuple(verdict.committed_BP[0, : int(verdict.accepted_B) + 1].tolist())


def distribution(pair: Pair, cycle) -> dict[Prefix, float]:
    shares: dict[Prefix, float] = {}
    committed: dict[tuple[Prefix, tuple[float, ...]], Prefix] = {}
    for uniforms in product(QUARTERS, repeat=TOKENS):
        answer: Prefix = ()
        while len(answer) < TOKENS:
            # Numbers of places that are committed already play no part.
            state = answer, uniforms[len(answer) :]
            if state not in committed:
                committed[state] = cycle(pair, answer, uniforms)
            answer += committed[state]
        shares[answer[:TOKENS]] = shares.get(answer[:TOKENS], 0.0) + 1 / 64
    return shares


@pytest.mark.parametrize("cycle", [chain_cycle, tree_cycle])
@pytest.mark.parametrize(
    "block", [0, 1, *(pytest.param(block, marks=pytest.mark.slow) for block in range(2, 8))]
)
def test_the_first_three_tokens_have_the_targets_distribution(cycle, block: int) -> None:
    """25 pairs each; a rule that favours or disfavours what was drafted moves a quarter at least."""
    for seed in range(25 * block, 25 * (block + 1)):
        pair = Pair(seed)
        expected = {
            answer: share
            for answer in product(range(V), repeat=TOKENS)
            if (
                share := pair.target(())[answer[0]]
                * pair.target(answer[:1])[answer[1]]
                * pair.target(answer[:2])[answer[2]]
            )
        }
        assert distribution(pair, cycle) == pytest.approx(expected, abs=1e-12), f"pair {seed}"
