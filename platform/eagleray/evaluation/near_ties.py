"""Where a drafted answer may part from plain decoding: at a near tie of the target's logits, if rounded.

A verification sums in another order than a plain step does. In float32 on this engine both have the same
bits, and every divergence is a failure. In bfloat16 two logits that are as good as equal may change places;
from there on the answers are about different texts, so only the first divergence is judged.
"""

from collections.abc import Sequence

from eagleray.evaluation.records import Answer

EXACT_DTYPE = "float32"
NEAR_TIE = 0.25
"""Largest lead of the likeliest token that rounding may turn over, in log probability: two steps of bfloat16
at logits of 16 to 32."""


def first_divergence(plain_ids: Sequence[int], drafted_ids: Sequence[int]) -> int | None:
    """Index of the first token that differs or is missing; None when the answers are equal."""
    for index, (plain, drafted) in enumerate(zip(plain_ids, drafted_ids, strict=False)):
        if plain != drafted:
            return index
    return None if len(plain_ids) == len(drafted_ids) else min(len(plain_ids), len(drafted_ids))


def is_near_tie(plain: Answer | None, drafted_ids: Sequence[int]) -> bool:
    """Whether a drafted answer first differs at a near tie, where it has the token that nearly stood there.

    Args:
        plain: With its rivals; where they are not known, nothing is a near tie.
        drafted_ids: May be longer or shorter than the plain answer.
    """
    place = first_divergence(plain.answer_ids, drafted_ids) if plain else None
    if plain is None or place is None or place >= len(plain.rivals) or place >= len(drafted_ids):
        return False
    rival = plain.rivals[place]
    return drafted_ids[place] == rival.token and rival.margin <= NEAR_TIE
