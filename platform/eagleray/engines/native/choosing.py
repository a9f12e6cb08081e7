"""What the target says, row by row: its likeliest token, or a drawn one.

Shapes: B rows, P positions of a row, V target vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagleray.engines.native.rows import Row
from eagleray.speculation.sampling import draw, probabilities


def choose(logits_BPV: Tensor, rows: Sequence[Row], depths_BP: Tensor | None = None) -> Tensor:
    """The target's token at each position [B, P]. Without sampled rows there is no softmax.

    Args:
        depths_BP: Which of the next places of its answer a position is for, from 0. None: one after another.
    """
    chosen_BP = logits_BPV.argmax(dim=-1)
    sampled = [slot for slot, row in enumerate(rows) if not row.sampling.greedy]
    if sampled:
        uniforms = [rows[slot].uniforms(logits_BPV.shape[1]) for slot in sampled]
        uniforms_SP = torch.tensor(uniforms, dtype=torch.float64, device=logits_BPV.device)
        if depths_BP is not None:
            uniforms_SP = uniforms_SP.gather(1, depths_BP[sampled])
        distributions_SPV = probabilities(logits_BPV[sampled], [rows[slot].sampling for slot in sampled])
        chosen_BP[sampled] = draw(distributions_SPV, uniforms_SP)
    return chosen_BP
