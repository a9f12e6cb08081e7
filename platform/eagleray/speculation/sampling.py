"""From logits to a token: the distribution that settings ask for, and a draw from it.

A draw is a function of the distribution and of one uniform number, and each place of an answer has
its own number. What is drawn there depends on nothing else: not on who shares the batch, not on
whether the place was reached one by one or in the verification of a draft.
Shapes: B rows, P positions of a row, V vocabulary.
"""

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from eagleray.speculation.config import SamplingConfig


class Uniforms:
    """Numbers of [0, 1) for the places of one answer, made as they are asked for.

    Python's generator: its sequence for a seed is promised to stay the same across versions.
    """

    def __init__(self, seed: int | str):
        self._random = Random(seed)
        self._made: list[float] = []

    def span(self, start: int, count: int) -> list[float]:
        """The numbers of places start, start + 1, ..."""
        while len(self._made) < start + count:
            self._made.append(self._random.random())
        return self._made[start : start + count]


def probabilities(logits_BPV: Tensor, samplings: Sequence[SamplingConfig]) -> Tensor:
    """The distribution that each row's tokens are drawn from.

    Each filter sees what the ones before it kept, normalised: temperature, top_k, top_p, min_p. Of
    equally likely tokens the lower id comes first. Temperature 0 gives the likeliest token alone.

    Args:
        samplings: One for each of the B rows.

    Returns:
        float64 [B, P, V], so that sums over large vocabularies stay exact to far below one draw.
    """

    def per_row(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits_BPV.device)[:, None, None]

    best_BP1 = logits_BPV.argmax(-1, keepdim=True)
    # The maximum goes first: it must not overflow, however small the temperature.
    below_BPV = logits_BPV.double() - logits_BPV.gather(-1, best_BP1).double()
    temperature_B11 = per_row([sampling.temperature for sampling in samplings])
    scaled_BPV = below_BPV / temperature_B11.where(temperature_B11 > 0, 1.0)
    if any(not sampling.greedy and _filters(sampling) for sampling in samplings):
        vocabulary = logits_BPV.shape[-1]
        kept_BPV = _kept(
            scaled_BPV,
            per_row([sampling.top_k or vocabulary for sampling in samplings]),
            # The sum over all tokens may be rounded to more than 1, which must not cut any.
            per_row([sampling.top_p if sampling.top_p < 1 else 2.0 for sampling in samplings]),
            per_row([sampling.min_p for sampling in samplings]),
        )
        scaled_BPV = scaled_BPV.masked_fill(~kept_BPV, -torch.inf)
    sampled_BPV = scaled_BPV.softmax(-1)
    certain_BPV = torch.zeros_like(sampled_BPV).scatter_(-1, best_BP1, 1.0)
    return sampled_BPV.where(temperature_B11 > 0, certain_BPV)


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a token of each distribution by inverting its cumulative sum.

    Args:
        probabilities: [..., V], not negative; they need not sum to 1.
        uniforms: [...], in [0, 1).

    Returns:
        int64 [...]; a token of probability 0 is never drawn.
    """
    cumulative = probabilities.cumsum(-1)
    total = cumulative[..., -1:]
    # A product rounded up to the total would lie beyond the last token.
    threshold = torch.minimum(uniforms[..., None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)


def _filters(sampling: SamplingConfig) -> bool:
    return sampling.top_k is not None or sampling.top_p < 1 or sampling.min_p > 0


def _kept(scaled_BPV: Tensor, top_k_B11: Tensor, top_p_B11: Tensor, min_p_B11: Tensor) -> Tensor:
    ordered_BPV, ids_BPV = scaled_BPV.sort(dim=-1, descending=True, stable=True)
    ranks_V = torch.arange(scaled_BPV.shape[-1], device=scaled_BPV.device)
    ordered_BPV = ordered_BPV.masked_fill(ranks_V >= top_k_B11, -torch.inf).softmax(-1)
    likelier_BPV = ordered_BPV.cumsum(-1) - ordered_BPV
    kept_BPV = (ordered_BPV > 0) & (likelier_BPV < top_p_B11)
    kept_BPV &= ordered_BPV >= min_p_B11 * ordered_BPV[..., :1]
    return torch.empty_like(kept_BPV).scatter_(-1, ids_BPV, kept_BPV)
