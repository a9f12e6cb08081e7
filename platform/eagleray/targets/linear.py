"""Frozen linear layers, laid out once for the few rows of a decode step.

A decode step multiplies 1 to some 200 rows by every weight, so it is bound by reading weights, and a
matrix product that repacks its weight, or waits for memory before it multiplies, costs several rows far
more than one. On a CPU in float32 the weight therefore lies in panels for a kernel of our own, which
reads it once at the speed of memory: six rows cost about as much as one.

Where no compiler is at hand, the weight is packed into oneDNN's layout (the operators behind torch's
compiled CPU inference), and one or two rows take the plain product. Elsewhere, as on a GPU or in bfloat16,
`torch.nn.functional.linear` runs, the plain twin of both.

Both layouts give a row the same bits whatever other rows are multiplied with it, so greedy decoding with
a drafter equals decoding without bit for bit; of oneDNN's, one and two rows only in a batch invariant layer.
Shapes: N rows, I inputs, O outputs.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.targets.kernels import panels

_PACKING_ROWS = 8
"""Row count that oneDNN's layout is chosen for; measured best or close to it from 3 to 64 rows."""

_PLAIN_ROWS = 2
"""Up to this many rows, the plain product reads a weight only once."""

_SINGLE_ROW_INPUTS = 1024
"""Up to this many inputs, oneDNN sums a single row in the same order as it sums several."""

Product = Callable[[Tensor], Tensor]
"""x [N, I] to x @ weight.T + bias [N, O]."""


class FrozenLinear:
    """`x @ weight.T + bias` without gradients."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None, *, batch_invariant: bool = False):
        self._product = _product(weight_OI, bias_O, batch_invariant=batch_invariant)

    def __call__(self, x_NI: Tensor) -> Tensor:
        """Returns [N, O]."""
        return self._product(x_NI)


def kernel_name(weight: Tensor) -> str:
    """What multiplies such weights here, for the regime: `panels`, `onednn` or `torch`."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return "torch"
    if panels.runs_here():
        return "panels"
    return "onednn" if torch.backends.mkldnn.is_available() else "torch"


def _product(weight_OI: Tensor, bias_O: Tensor | None, *, batch_invariant: bool) -> Product:
    kernel = kernel_name(weight_OI)
    if kernel == "panels":
        return panels.PanelWeight(weight_OI, bias_O)
    if kernel == "onednn":
        return PackedWeight(weight_OI, bias_O, batch_invariant=batch_invariant)
    return lambda x_NI: F.linear(x_NI, weight_OI, bias_O)


class PackedWeight:
    """A weight in oneDNN's layout, and as it was for one or two rows unless it is to be batch invariant."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, *, batch_invariant: bool):
        self._bias_O = bias_O
        self._num_inputs = weight_OI.shape[1]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), _PACKING_ROWS)
        self._weight_OI = None if batch_invariant else weight_OI

    def __call__(self, x_NI: Tensor) -> Tensor:
        """Returns x @ weight.T + bias, [N, O]."""
        if self._weight_OI is not None and len(x_NI) <= _PLAIN_ROWS:
            return F.linear(x_NI, self._weight_OI, self._bias_O)
        if len(x_NI) == 1 and self._num_inputs > _SINGLE_ROW_INPUTS:
            return self._multiply_packed(x_NI.expand(2, -1))[:1]
        return self._multiply_packed(x_NI)

    def _multiply_packed(self, x_NI: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x_NI, self._packed, self._bias_O, "none", [], ""
        )
        return product
