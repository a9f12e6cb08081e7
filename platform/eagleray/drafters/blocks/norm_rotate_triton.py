"""The fused twin of `norm_rotate_plain`: every head is read once and written once.

Triton's interpreter runs it on a CPU too (`TRITON_INTERPRET=1`), which is how it is tested without a GPU.
Shapes: N positions, L layers, G key heads of a layer, d width of a head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagleray.drafters.blocks.layers import Angles


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    keys,
    weight,
    cos,
    signed_sin,
    out,
    position_stride,
    layer_stride,
    eps,
    layers,
    groups,
    HALF: tl.constexpr,
):
    """One head: program (n, l * G + g). Heads lie dense behind the strides of keys."""
    position, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    layer, group = head // groups, head % groups
    low = tl.arange(0, HALF)
    high = low + HALF
    source = keys + position * position_stride + layer * layer_stride + group * 2 * HALF
    first, second = tl.load(source + low).to(tl.float32), tl.load(source + high).to(tl.float32)
    mean = (tl.sum(first * first, 0) + tl.sum(second * second, 0)) / (2 * HALF)
    factor = 1.0 / tl.sqrt(mean + eps)
    first = first * factor * tl.load(weight + layer * 2 * HALF + low).to(tl.float32)
    second = second * factor * tl.load(weight + layer * 2 * HALF + high).to(tl.float32)
    turn = position * 2 * HALF
    rotated_first = first * tl.load(cos + turn + low) + second * tl.load(signed_sin + turn + low)
    rotated_second = second * tl.load(cos + turn + high) + first * tl.load(signed_sin + turn + high)
    target = out + (position * layers * groups + head) * 2 * HALF
    tl.store(target + low, rotated_first.to(out.dtype.element_ty))
    tl.store(target + high, rotated_second.to(out.dtype.element_ty))


def norm_rotate_fused(keys_NLGd: Tensor, weight_Ld: Tensor, eps: float, angles: Angles) -> Tensor:
    """See `norm_rotate`. Half the width of a head is a power of two, and the heads of a layer lie dense."""
    positions, layers, groups, width = keys_NLGd.shape
    out_NLGd = torch.empty(keys_NLGd.shape, dtype=keys_NLGd.dtype, device=keys_NLGd.device)
    _kernel[(positions, layers * groups)](
        keys_NLGd,
        weight_Ld.contiguous(),
        angles.cos_N1d.contiguous(),
        angles.signed_sin_N1d.contiguous(),
        out_NLGd,
        keys_NLGd.stride(0),
        keys_NLGd.stride(1),
        eps,
        layers,
        groups,
        HALF=width // 2,
    )
    return out_NLGd
