"""The accept/reject rule of a greedy chain, by hand and against a token-by-token walk."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from eagleray.speculation.verification import verify_greedy_chain


def verify(draft, target):
    verdict = verify_greedy_chain(torch.tensor(draft), torch.tensor(target))
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
    verdict = verify_greedy_chain(torch.empty(2, 0, dtype=torch.long), torch.tensor([[7], [8]]))
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
