"""The candidate selector: which of a slot's best tokens follows the token chosen before it.

The score of candidate c after token p is u(c) + <P[p] * (W h), Q[c]>: the slot's own logit, and a
product of the two tokens' vectors gated by the slot's state. Shapes: N slots of any number of
dimensions, C candidates, D width, V target vocabulary, r rank.
"""

import torch
from torch import Tensor, nn


class CandidateSelector(nn.Module):
    """Scores of transitions between target ids. Fresh, they are all zero, and the best logit wins."""

    def __init__(self, width: int, vocab_size: int, rank: int):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.hidden_projection = nn.Linear(width, rank, bias=False)
        self.reset()

    def reset(self) -> None:
        """Return to no opinion. Predecessors are of unit size, or successors would hardly learn."""
        nn.init.normal_(self.predecessor_codebook)
        nn.init.zeros_(self.successor_codebook)

    def edges(self, states_ND: Tensor, predecessor_N: Tensor, candidate_NC: Tensor) -> Tensor:
        """Score of each candidate's following its predecessor, [N, C]."""
        gate_Nr = self.predecessor_codebook[predecessor_N] * self.hidden_projection(states_ND)
        scores_NC: Tensor = (self.successor_codebook[candidate_NC] @ gate_Nr[..., None])[..., 0]
        return scores_NC
