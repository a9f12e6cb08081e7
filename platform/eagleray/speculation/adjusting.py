"""Penalties and biases on the target's logits, position by position of a draft.

A position of a draft counts what is committed and the draft tokens on its own path, so what it says is
what plain decoding would say there. Counts follow vLLM: presence and frequency look at the answer,
repetition at prompt and answer.
Shapes: P positions (the anchor's, then each draft node's), N = P - 1 draft nodes, V vocabulary.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from eagleray.speculation.config import LogitAdjustments


def adjust(
    logits_PV: Tensor,
    adjustments: LogitAdjustments,
    *,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    draft_N: Tensor,
    ancestry_PP: Tensor,
    stop_ids: Collection[int],
) -> Tensor:
    """The logits that a row's tokens are chosen from.

    Args:
        answer_ids: Committed tokens, the anchor included.
        draft_N: Ids of the nodes; negative ones are padding.
        ancestry_PP: bool; whether position a is position p's ancestor or itself, at [p, a].
        stop_ids: Held back until `min_new_tokens` tokens have come.
    """
    vocabulary, device = logits_PV.shape[-1], logits_PV.device
    logits_PV = logits_PV.clone()
    if adjustments.logit_bias:
        ids = torch.tensor(list(adjustments.logit_bias), device=device)
        logits_PV[:, ids] += torch.tensor(list(adjustments.logit_bias.values()), device=device)
    places_P = len(answer_ids) + ancestry_PP.sum(dim=1) - 1
    if stop_ids:
        held_P1 = (places_P < adjustments.min_new_tokens)[:, None]
        columns = torch.tensor(sorted(stop_ids), device=device)
        logits_PV[:, columns] = logits_PV[:, columns].masked_fill(held_P1, -torch.inf)
    if not adjustments.counts:
        return logits_PV
    answered_V = torch.bincount(
        torch.tensor(answer_ids, device=device, dtype=torch.long), minlength=vocabulary
    )
    counts_PV = answered_V.repeat(len(logits_PV), 1)
    on_path_PN = (ancestry_PP[:, 1:] & (draft_N >= 0)).long()
    counts_PV.scatter_add_(1, draft_N.clamp(min=0).expand(len(logits_PV), -1), on_path_PN)
    if adjustments.repetition_penalty != 1.0:
        seen_PV = counts_PV > 0
        seen_PV[:, list(set(prompt_ids))] = True
        factor = adjustments.repetition_penalty
        harder_PV = torch.where(logits_PV > 0, logits_PV / factor, logits_PV * factor)
        logits_PV = torch.where(seen_PV, harder_PV, logits_PV)
    logits_PV -= adjustments.frequency_penalty * counts_PV
    logits_PV -= adjustments.presence_penalty * (counts_PV > 0)
    return logits_PV
