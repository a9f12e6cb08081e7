"""RMSNorm over each key head and its rotation: the plain twin, and one kernel where Triton runs.

Shapes: N positions, L layers, G key heads of a layer, d width of a head.
"""

from functools import cache
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.blocks.layers import Angles


def norm_rotate(keys_NLGd: Tensor, weight_Ld: Tensor, eps: float, angles: Angles) -> Tensor:
    """Normalised and rotated keys.

    Args:
        weight_Ld: Each layer's scale of its norm.
    """
    if keys_NLGd.device.type == "cuda" and _triton_is_there():
        from eagleray.drafters.blocks.norm_rotate_triton import norm_rotate_fused

        return norm_rotate_fused(keys_NLGd, weight_Ld, eps, angles)
    return norm_rotate_plain(keys_NLGd, weight_Ld, eps, angles)


def norm_rotate_plain(keys_NLGd: Tensor, weight_Ld: Tensor, eps: float, angles: Angles) -> Tensor:
    """See `norm_rotate`."""
    layers, heads, width = keys_NLGd.shape[1:]
    normed_NLGd = F.rms_norm(keys_NLGd, (width,), eps=eps) * weight_Ld[:, None]
    return angles.rotate(normed_NLGd.flatten(1, 2)).unflatten(1, (layers, heads))


@cache
def _triton_is_there() -> bool:
    return find_spec("triton") is not None and torch.version.cuda is not None
