"""Frozen linear layers, laid out once for the few rows of a decode step.

A decode step multiplies 1 to some 200 rows by every weight, so it is bound by reading weights, and
a matrix product that first repacks its weight reads it twice. On a CPU in float32 the weight is
therefore packed once into oneDNN's own layout (the operators behind torch's compiled CPU
inference); elsewhere, and as the plain twin, `torch.nn.functional.linear` runs.

The packed product gives a row the same bits whatever other rows are multiplied with it, which is
what makes greedy decoding with a drafter equal to decoding without, bit for bit.
Shapes: N rows, I inputs, O outputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_PACKING_ROWS = 8
"""Row count that the layout is chosen for; measured best or close to it from 1 to 64 rows."""

_SINGLE_ROW_INPUTS = 1024
"""Up to this many inputs, oneDNN sums a single row in the same order as it sums several."""


class FrozenLinear:
    """`x @ weight.T + bias` without gradients."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None, *, pack: bool = True):
        self.bias_O = bias_O
        self.packed = pack and _can_pack(weight_OI)
        self.num_inputs = weight_OI.shape[1]
        self.weight = _pack(weight_OI) if self.packed else weight_OI

    def __call__(self, x_NI: Tensor) -> Tensor:
        """Returns [N, O]."""
        if not self.packed:
            return F.linear(x_NI, self.weight, self.bias_O)
        if len(x_NI) == 1 and self.num_inputs > _SINGLE_ROW_INPUTS:
            return self._multiply(x_NI.expand(2, -1))[:1]
        return self._multiply(x_NI)

    def _multiply(self, x_NI: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(x_NI, self.weight, self.bias_O, "none", [], "")


def _can_pack(weight_OI: Tensor) -> bool:
    return (
        weight_OI.device.type == "cpu"
        and weight_OI.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
    )


def _pack(weight_OI: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), _PACKING_ROWS)
    return packed
