"""The accept/reject rule of a greedy chain draft.

Given what was proposed and what the target would have said, decide how many draft tokens survive
and which tokens are committed. Knows nothing of models, caches or batching.
Shapes: B batch, K draft slots, P = K + 1 target positions (the anchor's, then each draft token's).
"""

from typing import NamedTuple

from torch import Tensor, arange, minimum


class ChainVerdict(NamedTuple):
    """Outcome of one verification."""

    accepted_B: Tensor
    """Accepted draft tokens, 0..K."""

    committed_BP: Tensor
    """The first accepted + 1 ids of a row are committed: its accepted drafts, then the bonus token.
    The rest repeats the bonus token, so every entry is a valid id."""


def verify_greedy_chain(draft_BK: Tensor, target_argmax_BP: Tensor) -> ChainVerdict:
    """Accept each row's longest draft prefix that the target would have emitted itself.

    Args:
        draft_BK: Proposed ids. An id that no target emits (negative) ends a shorter draft.
        target_argmax_BP: The target's greedy choice after the anchor and after each draft token.
    """
    matches_BK = draft_BK == target_argmax_BP[:, :-1]
    accepted_B = matches_BK.long().cumprod(dim=1).sum(dim=1)
    slots_P = arange(target_argmax_BP.shape[1], device=accepted_B.device)
    committed_BP = target_argmax_BP.gather(1, minimum(slots_P, accepted_B[:, None]))
    return ChainVerdict(accepted_B, committed_BP)
