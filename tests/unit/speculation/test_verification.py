"""The accept/reject rules of a chain: by hand, against a walk, and as exact distributions.

Distributions are summed, not sampled: tiny vocabularies, probabilities on a grid of eighths, and
every cell of the grid that the uniform numbers fall into.
"""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagleray.speculation.config import TypicalAcceptance
from eagleray.speculation.sampling import draw
from eagleray.speculation.verification import verify_chain, verify_drawn_chain, verify_typical_chain

TOKENS = 3
EIGHTHS = [(k + 0.5) / 8 for k in range(8)]


def verify(draft, target):
    verdict = verify_chain(torch.tensor(draft), torch.tensor(target))
    return verdict.accepted_B.tolist(), verdict.committed_BP.tolist()


def test_acceptance_ends_at_the_first_mismatch():
    """Match masks 1011, 1111, 0111 and 1100: what matches after a mismatch does not count."""
    target = [[1, 2, 3, 4, 5]] * 4
    draft = [[1, 9, 3, 4], [1, 2, 3, 4], [9, 2, 3, 4], [1, 2, 9, 9]]
    accepted, committed = verify(draft, target)
    assert accepted == [1, 4, 0, 2]
    assert [ids[: count + 1] for ids, count in zip(committed, accepted, strict=True)] == [
        [1, 2],
        [1, 2, 3, 4, 5],
        [1],
        [1, 2, 3],
    ]


def test_what_is_not_committed_repeats_the_bonus_token():
    assert verify([[1, 9, 3]], [[1, 2, 3, 4]])[1] == [[1, 2, 2, 2]]


def test_no_draft_commits_the_bonus_token_alone():
    verdict = verify_chain(torch.empty(2, 0, dtype=torch.long), torch.tensor([[7], [8]]))
    assert verdict.accepted_B.tolist() == [0, 0]
    assert verdict.committed_BP.tolist() == [[7], [8]]


def test_an_empty_slot_ends_the_draft():
    assert verify([[1, -1, -1]], [[1, 2, 3, 4]])[0] == [1]


@given(
    st.integers(1, 6).flatmap(
        lambda k: st.tuples(*[st.lists(st.integers(0, 2), min_size=n, max_size=n) for n in (k, k + 1)])
    )
)
def test_a_token_by_token_walk_commits_the_same(case):
    draft, target = case
    walked = []
    for slot, choice in enumerate(target):
        walked.append(choice)
        if slot == len(draft) or draft[slot] != choice:
            break
    (accepted,), (committed,) = verify([draft], [target])
    assert committed[: accepted + 1] == walked


def target_probabilities(prefix: tuple[int, ...]) -> list[float]:
    """A distribution in eighths that differs with every prefix."""
    first = 1 + (len(prefix) + 2 * sum(prefix)) % 5
    second = 1 + (3 * len(prefix) + sum(prefix)) % (7 - first)
    return [first / 8, second / 8, (8 - first - second) / 8]


def product_distribution(length: int) -> dict[tuple[int, ...], float]:
    """Of the first tokens of an answer, from the target alone."""
    exact = {}
    for ids in product(range(TOKENS), repeat=length):
        probability = 1.0
        for place, token in enumerate(ids):
            probability *= target_probabilities(ids[:place])[token]
        exact[ids] = probability
    return exact


def probabilities_along(prefix: tuple[int, ...], draft: list[int]) -> torch.Tensor:
    """[1, P, V] after a prefix and after each draft token."""
    return torch.tensor(
        [[target_probabilities((*prefix, *draft[:slot])) for slot in range(len(draft) + 1)]],
        dtype=torch.float64,
    )


def answer(uniforms: tuple[float, ...], depth: int, drafter) -> tuple[int, ...]:
    """The first tokens of an answer, drafted cycle by cycle; one number for each place."""
    ids: tuple[int, ...] = ()
    while len(ids) < len(uniforms):
        draft = drafter(ids)[: min(depth, len(uniforms) - len(ids) - 1)]
        target_BPV = probabilities_along(ids, [max(token, 0) for token in draft])
        numbers = torch.tensor([uniforms[len(ids) : len(ids) + len(draft) + 1]], dtype=torch.float64)
        verdict = verify_chain(torch.tensor([draft], dtype=torch.long), draw(target_BPV, numbers))
        ids += tuple(verdict.committed_BP[0, : verdict.accepted_B[0] + 1].tolist())
    return ids


DRAFTERS = {
    "always the same token": lambda prefix: [1, 1],
    "depends on the prefix": lambda prefix: [(sum(prefix) + 1) % TOKENS, len(prefix) % TOKENS],
    "sometimes nothing": lambda prefix: [0, -1] if sum(prefix) % 2 else [-1, -1],
}


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_deterministic_draft_leaves_the_targets_distribution_and_even_its_ids(depth, drafter):
    seen = dict.fromkeys(product(range(TOKENS), repeat=3), 0.0)
    for uniforms in product(EIGHTHS, repeat=3):
        ids = answer(uniforms, depth, drafter)
        assert ids == answer(uniforms, 0, drafter)
        seen[ids] += 1 / 8**3
    assert seen == pytest.approx(product_distribution(3))


def test_a_deterministic_draft_is_accepted_as_often_as_the_target_would_say_it():
    """p(x) at each slot reached, which is the best that any rule can do for a draft without chance."""
    accepted = [0.0] * 3
    for uniforms in product(EIGHTHS, repeat=3):
        target_BP = draw(probabilities_along((), [0, 2]), torch.tensor([uniforms], dtype=torch.float64))
        accepted[int(verify_chain(torch.tensor([[0, 2]]), target_BP).accepted_B)] += 1 / 8**3
    first, second = target_probabilities(())[0], target_probabilities((0,))[2]
    assert accepted == pytest.approx([1 - first, first * (1 - second), first * second])


def cells(*borders: float) -> list[tuple[float, float]]:
    """(midpoint, length) of the pieces that the borders cut [0, 1) into."""
    cuts = sorted({0.0, 1.0, *(border for border in borders if 0 < border < 1)})
    return [((low + high) / 2, high - low) for low, high in pairwise(cuts)]


def residual_borders(p: list[float], q: list[float]) -> list[float]:
    rest = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    total = sum(rest) or 1.0
    return [sum(rest[: token + 1]) / total for token in range(TOKENS)]


def drawn_distribution(draft_distribution, length: int) -> dict[tuple[int, ...], float]:
    """Of the first `length` tokens: two slots drawn from q, one verification, then the target alone."""
    seen = dict.fromkeys(product(range(TOKENS), repeat=length), 0.0)
    for draft in product(range(TOKENS), repeat=2):
        q = [draft_distribution(draft[:slot]) for slot in range(2)]
        p = [target_probabilities(draft[:slot]) for slot in range(3)]
        weight = q[0][draft[0]] * q[1][draft[1]]
        if weight == 0:
            continue
        accepts = [cells(p[slot][draft[slot]] / q[slot][draft[slot]]) for slot in range(2)]
        bonus = cells(
            *residual_borders(p[0], q[0]), *residual_borders(p[1], q[1]), *residual_borders(p[2], [0] * 3)
        )
        for (u0, w0), (u1, w1), (u2, w2) in product(*accepts, bonus):
            verdict = verify_drawn_chain(
                torch.tensor([draft]),
                torch.tensor([q], dtype=torch.float64),
                torch.tensor([p], dtype=torch.float64),
                torch.tensor([[u0, u1]], dtype=torch.float64),
                torch.tensor([u2], dtype=torch.float64),
            )
            ids = tuple(verdict.committed_BP[0, : verdict.accepted_B[0] + 1].tolist())
            for rest in product(range(TOKENS), repeat=length - len(ids)):
                probability = weight * w0 * w1 * w2
                for place, token in enumerate(rest):
                    probability *= target_probabilities((*ids, *rest[:place]))[token]
                seen[(*ids, *rest)] += probability
    return seen


DRAFT_DISTRIBUTIONS = {
    "uniform": lambda prefix: [1 / 3] * 3,
    "the target's own": target_probabilities,
    "without a token": lambda prefix: [0.0, 0.25, 0.75],
    "one token alone": lambda prefix: [0.0, 1.0, 0.0],
    "depends on the prefix": lambda prefix: [0.5, 0.125, 0.375] if sum(prefix) else [0.1, 0.2, 0.7],
}


@pytest.mark.parametrize("draft_distribution", DRAFT_DISTRIBUTIONS.values(), ids=DRAFT_DISTRIBUTIONS)
def test_a_drawn_draft_leaves_the_targets_distribution(draft_distribution):
    assert drawn_distribution(draft_distribution, 3) == pytest.approx(product_distribution(3))


def test_a_draft_drawn_from_the_targets_own_distribution_is_always_accepted():
    p_BPV = probabilities_along((), [2, 0])
    for uniform in EIGHTHS:
        verdict = verify_drawn_chain(
            torch.tensor([[2, 0]]), p_BPV[:, :-1], p_BPV, torch.full((1, 2), uniform), torch.tensor([0.5])
        )
        assert verdict.accepted_B.tolist() == [2]


def test_an_empty_slot_of_a_drawn_draft_is_followed_by_the_target_itself():
    p_BPV = probabilities_along((), [0, 0])
    q_BKV = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    seen = [0.0] * TOKENS
    for uniform in EIGHTHS:
        verdict = verify_drawn_chain(
            torch.tensor([[-1, 0]]),
            q_BKV,
            p_BPV,
            torch.zeros(1, 2),
            torch.tensor([uniform], dtype=torch.float64),
        )
        assert verdict.accepted_B.tolist() == [0]
        seen[int(verdict.committed_BP[0, 0])] += 1 / 8
    assert seen == target_probabilities(())


def test_plausible_tokens_are_accepted_and_the_target_goes_on_from_there():
    """Of p = (0.5, 0.25, 0.25) with an entropy of 1.04 the threshold is min(0.09, 0.3 / 2.83) = 0.09; of
    (0.95, 0.05, 0) with 0.2 it is 0.09, too."""
    p_BPV = torch.tensor([[[0.5, 0.25, 0.25], [0.95, 0.05, 0.0], [0.5, 0.25, 0.25]]], dtype=torch.float64)
    target_BP = torch.tensor([[0, 0, 2]])
    for draft, accepted, committed in (
        ([2, 0], 2, [2, 0, 2]),
        ([1, 1], 1, [1, 0, 0]),
        ([-1, 0], 0, [0, 0, 0]),
    ):
        verdict = verify_typical_chain(torch.tensor([draft]), p_BPV, target_BP, TypicalAcceptance())
        assert verdict.accepted_B.tolist() == [accepted]
        assert verdict.committed_BP.tolist() == [committed]


def test_where_the_target_is_unsure_less_probable_tokens_are_plausible():
    """Of 64 equally likely tokens each has 1/64, and the threshold is 0.3 / 64."""
    p_BPV = torch.full((1, 2, 64), 1 / 64, dtype=torch.float64)
    draft_BK, target_BP = torch.tensor([[7]]), torch.tensor([[3, 3]])
    assert verify_typical_chain(draft_BK, p_BPV, target_BP, TypicalAcceptance()).accepted_B.tolist() == [1]
    strict = TypicalAcceptance(epsilon=0.001, alpha=1.0)
    assert verify_typical_chain(draft_BK, p_BPV, target_BP, strict).accepted_B.tolist() == [1]
    assert verify_typical_chain(
        draft_BK, p_BPV, target_BP, TypicalAcceptance(epsilon=0.5, alpha=1.0)
    ).accepted_B.tolist() == [0]


def test_of_a_single_token_that_token_alone_is_plausible():
    p_BPV = torch.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    for draft, accepted in ((1, 1), (0, 0)):
        verdict = verify_typical_chain(
            torch.tensor([[draft]]), p_BPV, torch.tensor([[1, 0]]), TypicalAcceptance()
        )
        assert verdict.accepted_B.tolist() == [accepted]
