"""Convolution along a block with coefficients that depend on the row, around a sublayer.

Shapes: N blocks, K slots, D width, T taps, J groups of channels that share a coefficient.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SurroundingConvolution(nn.Module):
    """Mixes each slot with the ones before it, at the input and at the output of a sublayer.

    Row i becomes sum over taps t of (base[side, t] + delta[i, side, t]) * row i - t, slots before the
    block being zero. `delta` comes from the sublayer's normed input, for both sides, and is shared by the
    channels of a group. Fresh, tap 0 is 1 and all else 0: the sublayer is as if alone.

    Args:
        group: Channels of a group; divides `width`.
    """

    def __init__(self, width: int, taps: int, group: int):
        super().__init__()
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, width))
        self.kernel_projection = nn.Linear(width, 2 * taps * (width // group), bias=False)
        self.group = group
        self.reset()

    def reset(self) -> None:
        """Return to the identity."""
        nn.init.zeros_(self.base_kernel)
        nn.init.ones_(self.base_kernel[:, 0])
        nn.init.zeros_(self.kernel_projection.weight)

    def forward(self, source_NKD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Run `sublayer` between the two convolutions. Returns [N, K, D]."""
        taps = self.base_kernel.shape[1]
        delta_NK2TJ = self.kernel_projection(source_NKD).unflatten(-1, (2, taps, -1))
        inner_NKD = self._convolve(0, source_NKD, delta_NK2TJ[..., 0, :, :])
        return self._convolve(1, sublayer(inner_NKD), delta_NK2TJ[..., 1, :, :])

    def _convolve(self, side: int, rows_NKD: Tensor, delta_NKTJ: Tensor) -> Tensor:
        kernel_NKTD = self.base_kernel[side] + delta_NKTJ.repeat_interleave(self.group, -1)
        out_NKD = kernel_NKTD[..., 0, :] * rows_NKD
        for tap in range(1, kernel_NKTD.shape[-2]):
            earlier_NKD = F.pad(rows_NKD, (0, 0, tap, 0))[..., : rows_NKD.shape[-2], :]
            out_NKD = out_NKD + kernel_NKTD[..., tap, :] * earlier_NKD
        return out_NKD
