"""Frozen linear layers, laid out once for the few rows of a decode step.

A decode step multiplies 1 to some 200 rows by every weight, so it is bound by reading weights, and
a matrix product that first repacks its weight reads it twice. On a CPU in float32 the weight is
therefore packed once into oneDNN's own layout (the operators behind torch's compiled CPU
inference): six rows then cost 1.4 times one row instead of 1.9 times. One or two rows are fastest
on the plain weight, which is kept for them. Elsewhere `torch.nn.functional.linear` runs, the plain twin.

The packed product gives a row the same bits whatever other rows are multiplied with it. A batch
invariant layer uses it for any number of rows: half the memory, one row a tenth slower, and greedy
decoding with a drafter equals decoding without bit for bit, not only up to near ties.
Shapes: N rows, I inputs, O outputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_PACKING_ROWS = 8
"""Row count that the layout is chosen for; measured best or close to it from 3 to 64 rows."""

_PLAIN_ROWS = 2
"""Up to this many rows, the plain product reads a weight only once."""

_SINGLE_ROW_INPUTS = 1024
"""Up to this many inputs, oneDNN sums a single row in the same order as it sums several."""


class FrozenLinear:
    """`x @ weight.T + bias` without gradients."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None, *, batch_invariant: bool = False):
        self._bias_O = bias_O
        self._num_inputs = weight_OI.shape[1]
        self._packed = _pack(weight_OI) if _can_pack(weight_OI) else None
        self._weight_OI = None if batch_invariant and self._packed is not None else weight_OI

    def __call__(self, x_NI: Tensor) -> Tensor:
        """Returns [N, O]."""
        if self._weight_OI is not None and (self._packed is None or len(x_NI) <= _PLAIN_ROWS):
            return F.linear(x_NI, self._weight_OI, self._bias_O)
        if len(x_NI) == 1 and self._num_inputs > _SINGLE_ROW_INPUTS:
            return self._multiply_packed(x_NI.expand(2, -1))[:1]
        return self._multiply_packed(x_NI)

    def _multiply_packed(self, x_NI: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x_NI, self._packed, self._bias_O, "none", [], ""
        )
        return product


def _can_pack(weight_OI: Tensor) -> bool:
    return (
        weight_OI.device.type == "cpu"
        and weight_OI.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
    )


def _pack(weight_OI: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), _PACKING_ROWS)
    return packed
