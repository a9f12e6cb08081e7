"""A frozen weight in panels that stream through the cache; see `panels.c`.

Shapes: N rows, I inputs, O outputs.
"""

import ctypes
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.targets.kernels.build import load_kernels, logger, threads_for

PANEL = 32
"""Outputs of one panel, as in `panels.c`."""


class PanelWeight:
    """A float32 weight on a CPU, laid out for products of any number of rows.

    A row has the same bits whatever other rows it is multiplied with.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None):
        self._bias_O = bias_O
        self._outputs, self._inputs = weight_OI.shape
        panels = -(-self._outputs // PANEL)
        padded = F.pad(weight_OI, (0, 0, 0, panels * PANEL - self._outputs))
        self._panels = padded.view(panels, PANEL, self._inputs).transpose(1, 2).contiguous()

    def __call__(self, x_NI: Tensor) -> Tensor:
        """Returns x @ weight.T + bias, [N, O]."""
        x_NI = x_NI.contiguous()
        rows = x_NI.shape[0]
        y_NO = x_NI.new_empty(rows, self._outputs)
        _multiply()(
            x_NI.data_ptr(),
            self._panels.data_ptr(),
            y_NO.data_ptr(),
            rows,
            self._inputs,
            self._outputs,
            threads_for(rows * self._inputs * self._outputs),
        )
        return y_NO if self._bias_O is None else y_NO.add_(self._bias_O)


@cache
def runs_here() -> bool:
    """Whether the kernel compiles on this machine and computes what torch computes."""
    if load_kernels("panels") is None:
        return False
    generator = torch.Generator().manual_seed(0)
    x_NI, weight_OI = torch.randn(13, 40, generator=generator), torch.randn(70, 40, generator=generator)
    differs = not torch.allclose(PanelWeight(weight_OI)(x_NI), x_NI @ weight_OI.T, atol=1e-4)
    if differs:
        logger.warning("The compiled kernel computes wrong products on this machine; it is not used.")
    return not differs


@cache
def _multiply() -> Any:
    kernels = load_kernels("panels")
    assert kernels is not None, "runs_here() was not asked"
    multiply = kernels.multiply_panels
    multiply.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3 + [ctypes.c_int]
    multiply.restype = None
    return multiply
