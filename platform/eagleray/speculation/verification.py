"""The accept/reject rules of a chain draft: the target's distribution comes out, whatever was drafted.

Given what was proposed and what the target says, decide how many draft tokens survive and which
tokens are committed. Knows nothing of models, caches or batching. The rules are those of speculative
decoding (arXiv 2211.17192) and speculative sampling (arXiv 2302.01318).
Shapes: B batch, K draft slots, P = K + 1 target positions (the anchor's, then each draft token's),
V vocabulary.
"""

from typing import NamedTuple

from torch import Tensor, arange, cat, minimum

from eagleray.speculation.config import TypicalAcceptance
from eagleray.speculation.sampling import draw

_TINY = 1e-300
"""Stands for 0 in logarithms that are multiplied by 0."""


class ChainVerdict(NamedTuple):
    """Outcome of one verification."""

    accepted_B: Tensor
    """Accepted draft tokens, 0..K."""

    committed_BP: Tensor
    """The first accepted + 1 ids of a row are committed: its accepted drafts, then the bonus token.
    The rest repeats the bonus token, so every entry is a valid id."""


def verify_chain(draft_BK: Tensor, target_BP: Tensor) -> ChainVerdict:
    """Accept each row's longest draft prefix that the target says itself.

    For drafts that involve no chance. The target's token at each position is its likeliest, or one drawn
    from its distribution p: then a draft token x is accepted with probability p(x), and a refused one
    leaves a token distributed as p without x, which is the rule of speculative sampling where the draft's
    distribution is x alone. Either way the ids are those that the target would give without a draft.

    Args:
        draft_BK: Proposed ids. An id that no target emits (negative) ends a shorter draft.
        target_BP: The target's token after the anchor and after each draft token.
    """
    accepted_B = _accepted_prefix(draft_BK == target_BP[:, :-1])
    return _commit(target_BP, accepted_B)


def verify_drawn_chain(
    draft_BK: Tensor,
    draft_probabilities_BKV: Tensor,
    target_probabilities_BPV: Tensor,
    accept_uniforms_BK: Tensor,
    bonus_uniforms_B: Tensor,
) -> ChainVerdict:
    """Accept draft tokens x, themselves drawn from q, with probability min(1, p(x) / q(x)) each.

    The first refused one is replaced by a draw from max(p - q, 0), normalised; if none is refused, the
    bonus token is drawn from the last p.

    Args:
        draft_BK: Proposed ids. A negative id ends a shorter draft.
        draft_probabilities_BKV: q at each slot; ignored where no id is proposed.
    """
    proposed_BK = draft_BK >= 0
    ids_BK1 = draft_BK.clamp(min=0)[..., None]
    p_BK = target_probabilities_BPV[:, :-1].gather(-1, ids_BK1).squeeze(-1)
    q_BK = draft_probabilities_BKV.gather(-1, ids_BK1).squeeze(-1)
    accepted_B = _accepted_prefix(proposed_BK & (accept_uniforms_BK * q_BK < p_BK))
    residual_BPV = target_probabilities_BPV.clone()
    residual_BPV[:, :-1] -= draft_probabilities_BKV * proposed_BK[..., None]
    rows_B = arange(len(accepted_B), device=accepted_B.device)
    bonus_B = draw(residual_BPV[rows_B, accepted_B].clamp(min=0), bonus_uniforms_B)
    chosen_BP = cat([draft_BK, bonus_B[:, None]], dim=1).scatter(1, accepted_B[:, None], bonus_B[:, None])
    return _commit(chosen_BP, accepted_B)


def verify_typical_chain(
    draft_BK: Tensor, target_probabilities_BPV: Tensor, target_BP: Tensor, rule: TypicalAcceptance
) -> ChainVerdict:
    """Accept each row's longest draft prefix that the target finds plausible. Not lossless.

    Where the target's distribution is a single token, as in greedy decoding, that token alone is plausible.

    Args:
        draft_BK: Proposed ids. A negative id ends a shorter draft.
        target_BP: The target's own token at each position, committed after the accepted ones.
    """
    p_BPV = target_probabilities_BPV[:, :-1]
    entropy_BK = -(p_BPV * p_BPV.clamp(min=_TINY).log()).sum(-1)
    threshold_BK = (rule.alpha * (-entropy_BK).exp()).clamp(max=rule.epsilon)
    p_BK = p_BPV.gather(-1, draft_BK.clamp(min=0)[..., None]).squeeze(-1)
    accepted_B = _accepted_prefix((draft_BK >= 0) & (p_BK > threshold_BK))
    bonus_B1 = target_BP.gather(1, accepted_B[:, None])
    chosen_BP = cat([draft_BK, bonus_B1], dim=1).scatter(1, accepted_B[:, None], bonus_B1)
    return _commit(chosen_BP, accepted_B)


def _accepted_prefix(fits_BK: Tensor) -> Tensor:
    return fits_BK.long().cumprod(dim=1).sum(dim=1)


def _commit(chosen_BP: Tensor, accepted_B: Tensor) -> ChainVerdict:
    """Keep the tokens up to the bonus token, and repeat that."""
    slots_P = arange(chosen_BP.shape[1], device=accepted_B.device)
    return ChainVerdict(accepted_B, chosen_BP.gather(1, minimum(slots_P, accepted_B[:, None])))
