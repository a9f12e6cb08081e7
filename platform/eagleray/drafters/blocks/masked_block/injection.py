"""Keys and values of committed positions for all layers at once, as soon as the target has verified them.

Where every layer makes them of the same state, one product yields them all. Weights are those of the moment
in which a session starts. Shapes: N positions, L layers, D width, G key/value heads, d width of a head.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.blocks.layers import Angles
from eagleray.drafters.blocks.masked_block.layer import MaskedBlockLayer
from eagleray.drafters.blocks.norm_rotate import norm_rotate


class Injection:
    """The key and value matrices of all layers, side by side."""

    def __init__(self, layers: Sequence[MaskedBlockLayer], eps: float):
        attentions = [layer.self_attn for layer in layers]
        matrices = [matrix.weight for one in attentions for matrix in (one.k_proj, one.v_proj)]
        self._weight_XD = torch.cat([matrix.detach() for matrix in matrices])
        self._norm_Ld = torch.stack([one.k_norm.weight.detach() for one in attentions])
        self._eps = eps
        self._shape = len(layers), 2, attentions[0].num_kv_heads, attentions[0].head_dim

    def __call__(self, context_ND: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Rotated keys and plain values, both [N, L, G, d]."""
        keys_NLGd, values_NLGd = F.linear(context_ND, self._weight_XD).unflatten(-1, self._shape).unbind(2)
        return norm_rotate(keys_NLGd, self._norm_Ld, self._eps, angles), values_NLGd
