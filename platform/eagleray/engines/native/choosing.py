"""What the target says, row by row: its likeliest token, or a drawn one; and how likely it was.

Shapes: B rows, P positions of a row, A positions of its accepted path, S rows that sample, V target
vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagleray.engines.base import TokenScore
from eagleray.engines.native.drafts import ChainDraft, DrawnChain, TreeDraft
from eagleray.engines.native.rows import Row
from eagleray.speculation.adjusting import adjust
from eagleray.speculation.config import TypicalAcceptance
from eagleray.speculation.sampling import draw, probabilities
from eagleray.speculation.trees import TreeVerdict
from eagleray.speculation.verification import ChainVerdict, verify_drawn_chain, verify_typical_chain


def judge(
    logits_BPV: Tensor,
    rows: Sequence[Row],
    draft: ChainDraft | TreeDraft,
    typical: TypicalAcceptance | None = None,
) -> ChainVerdict | TreeVerdict:
    """How much of a draft is accepted, and what is committed.

    Args:
        typical: Accept what is plausible; None is lossless.
    """
    if not isinstance(draft, DrawnChain) and typical is None:
        return draft.verify(choose(logits_BPV, rows, draft))
    slots = draft.ids_BN.shape[1]
    target_BPV = probabilities(_adjusted(logits_BPV, rows, draft), [row.sampling for row in rows])
    if typical is not None:
        uniforms_BP = target_BPV.new_tensor([row.uniforms(slots + 1) for row in rows])
        return verify_typical_chain(draft.ids_BN, target_BPV, draw(target_BPV, uniforms_BP), typical)
    assert isinstance(draft, DrawnChain)
    return verify_drawn_chain(
        draft.ids_BN,
        draft.probabilities_BNV,
        target_BPV,
        target_BPV.new_tensor([row.uniforms(slots, "accept") for row in rows]),
        target_BPV.new_tensor([row.uniforms(1) for row in rows])[:, 0],
    )


def choose(logits_BPV: Tensor, rows: Sequence[Row], draft: ChainDraft | TreeDraft) -> Tensor:
    """The target's token at each position of a draft [B, P]. Without sampled rows there is no softmax."""
    logits_BPV = _adjusted(logits_BPV, rows, draft)
    chosen_BP = logits_BPV.argmax(dim=-1)
    sampled = [slot for slot, row in enumerate(rows) if not row.sampling.greedy]
    if sampled:
        uniforms = [rows[slot].uniforms(logits_BPV.shape[1]) for slot in sampled]
        uniforms_SP = torch.tensor(uniforms, dtype=torch.float64, device=logits_BPV.device)
        if draft.depths_BP is not None:
            uniforms_SP = uniforms_SP.gather(1, draft.depths_BP[sampled])
        distributions_SPV = probabilities(logits_BPV[sampled], [rows[slot].sampling for slot in sampled])
        chosen_BP[sampled] = draw(distributions_SPV, uniforms_SP)
    return chosen_BP


def tell_scores(rows: Sequence[Row], logits_BAV: Tensor, counts: Sequence[int]) -> None:
    """Tell rows that ask for it how likely their newest tokens were, so many of each."""
    for row, logits_AV, count in zip(rows, logits_BAV, counts, strict=True):
        likeliest = row.request.log_probabilities
        if likeliest is not None:
            row.scores += _score(logits_AV[:count], row.answer_ids[-count:], likeliest)


def _score(logits_AV: Tensor, ids: Sequence[int], likeliest: int) -> list[TokenScore]:
    """How likely each of some tokens was, and which were the likeliest."""
    scores_AV = logits_AV.float().log_softmax(-1)
    ids_A1 = torch.tensor(ids, device=logits_AV.device)[:, None]
    chosen = scores_AV.gather(1, ids_A1)[:, 0].tolist()
    top = scores_AV.topk(likeliest)
    ranked = [
        tuple(zip(*pair, strict=True)) for pair in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
    return [TokenScore(chosen=value, likeliest=best) for value, best in zip(chosen, ranked, strict=True)]


def _adjusted(logits_BPV: Tensor, rows: Sequence[Row], draft: ChainDraft | TreeDraft) -> Tensor:
    concerned = [slot for slot, row in enumerate(rows) if row.request.adjustments is not None]
    if not concerned:
        return logits_BPV
    logits_BPV = logits_BPV.clone()
    for slot in concerned:
        request = rows[slot].request
        assert request.adjustments is not None
        logits_BPV[slot] = adjust(
            logits_BPV[slot],
            request.adjustments,
            prompt_ids=request.prompt_ids,
            answer_ids=rows[slot].answer_ids,
            draft_N=draft.ids_BN[slot],
            ancestry_PP=draft.ancestry(slot),
            stop_ids=rows[slot].stop_ids,
        )
    return logits_BPV
