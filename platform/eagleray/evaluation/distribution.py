"""Sampled answers with and without a drafter: are they draws from one distribution?

Both sides answer the same prompt many times under seeds of their own. Answers of one side are independent,
but the tokens of an answer are not, so whole answers change sides: the p value is the share of random
divisions of all answers into two sides that differ as much as the real one (a permutation test, exact at any
size).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eagleray.evaluation.exactness import Check

NAME = "sampling distribution"
ALPHA = 0.001
"""Chance that the check fails a drafter that is exact."""
PERMUTATIONS = 5000
ENDED = -1
"""Stands for a place behind the end of an answer."""

Ids = Sequence[Sequence[int]]
"""Ids of each answer."""


def distribution_check(label: str, plain: Ids, drafted: Ids, seed: int = 0) -> Check:
    """Compare answers that were sampled with and without a drafter.

    The first token of an answer comes from prefill on both sides and is left out.
    """
    p_value = two_sample_p(_without_first(plain), _without_first(drafted), seed)
    passed = p_value >= ALPHA
    return Check(
        name=NAME,
        subject=label,
        outcome="passed" if passed else "failed",
        detail=f"{len(plain)} plain and {len(drafted)} drafted answers at temperature 1 "
        f"{'may be' if passed else 'are not'} of one distribution: p {p_value:.2g}, alpha {ALPHA}",
    )


def two_sample_p(first: Ids, second: Ids, seed: int = 0) -> float:
    """Return the p value of the hypothesis that both sides are drawn from one distribution.

    The statistic is chi-square between the histograms of tokens at every place, added over the places.
    """
    counts_AT = _indicators([*first, *second])
    answers = len(counts_AT)
    is_first_A = np.arange(answers) < len(first)
    draw = np.random.default_rng(seed)
    divisions_RA = draw.permuted(np.tile(is_first_A, (PERMUTATIONS, 1)), axis=1)
    observed = _chi_square(is_first_A[None, :], counts_AT)[0]
    drawn_R = _chi_square(divisions_RA, counts_AT)
    # Equal sums may differ in their last bits.
    as_far = np.count_nonzero(drawn_R >= observed * (1.0 - 1e-9))
    return float((1 + as_far) / (PERMUTATIONS + 1))


def _chi_square(is_first_RA: NDArray[np.bool_], counts_AT: NDArray[np.float32]) -> NDArray[np.float32]:
    """Chi-square of each division R of the answers A, over the tokens T of all places."""
    total_T = counts_AT.sum(axis=0)
    share_R1 = is_first_RA.mean(axis=1, keepdims=True)
    expected_RT = share_R1 * total_T
    first_RT = is_first_RA.astype(np.float32) @ counts_AT
    # Each side is as far from what is expected of it; their two terms add up to this.
    terms_RT = (first_RT - expected_RT) ** 2 / (expected_RT * (1.0 - share_R1))
    statistic_R: NDArray[np.float32] = terms_RT.sum(axis=1)
    return statistic_R


def _indicators(answers: Ids) -> NDArray[np.float32]:
    """A column for every token at every place: 1 where an answer has it there."""
    longest = max(map(len, answers))
    places: dict[tuple[int, int], int] = {}
    rows = [
        [
            places.setdefault((place, answer[place] if place < len(answer) else ENDED), len(places))
            for place in range(longest)
        ]
        for answer in answers
    ]
    counts_AT = np.zeros((len(answers), len(places)), dtype=np.float32)
    for row, columns in enumerate(rows):
        counts_AT[row, columns] = 1.0
    return counts_AT


def _without_first(answers: Ids) -> list[Sequence[int]]:
    return [answer[1:] for answer in answers]
