"""What a decode step does between its products, in compiled code; see `step.c`. For float32 on a CPU.

Shapes: T tokens of all rows, B rows, Q new tokens of a row, D target width, F inner width, H query heads,
G key-value heads, S cache positions, N head width.
"""

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eagleray.targets.kernels.build import load_kernels, threads_for

LANES = 16
"""Widths are multiples of this."""


def fits(tensor: Tensor, *widths: int) -> bool:
    """Whether the kernels run here and on such numbers."""
    coarse = tensor.device.type != "cpu" or tensor.dtype != torch.float32
    return not coarse and not any(width % LANES for width in widths) and load_kernels("step") is not None


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight."""
    x_TD = x_TD.contiguous()
    y_TD = torch.empty_like(x_TD)
    width = x_TD.shape[-1]
    rows = x_TD.numel() // width
    _function("rms_norm")(x_TD.data_ptr(), weight_D.data_ptr(), y_TD.data_ptr(), rows, width, eps)
    return y_TD


def silu_multiply(gate_up_TF: Tensor) -> Tensor:
    """silu(gate) * up, [T, F], from both side by side."""
    rows, both = gate_up_TF.shape
    y_TF = gate_up_TF.new_empty(rows, both // 2)
    _function("silu_multiply")(gate_up_TF.data_ptr(), y_TF.data_ptr(), rows, both // 2)
    return y_TF


def attend_step(
    query_THN: Tensor,
    key_TGN: Tensor,
    value_TGN: Tensor,
    keys_RGSN: Tensor,
    values_RGSN: Tensor,
    lengths_B: Tensor,
    seen_BQQ: Tensor | None,
    positions: int,
) -> Tensor:
    """Append Q new tokens to each of the first B rows of a cache, and let them attend. Returns [T, H * N].

    Args:
        query_THN: Like the keys a view of one [T, H + G or more, N].
        lengths_B: int64; committed positions of each row.
        seen_BQQ: bool, dense; which new tokens each new token sees. None: itself and those before it.
        positions: Committed positions of all rows together.
    """
    tokens, heads, width = query_THN.shape
    rows, groups = len(lengths_B), key_TGN.shape[1]
    out_TE = query_THN.new_empty(tokens, heads * width)
    _function("attend_step")(
        query_THN.data_ptr(),
        key_TGN.data_ptr(),
        value_TGN.data_ptr(),
        query_THN.stride(0),
        value_TGN.stride(0),
        keys_RGSN.data_ptr(),
        values_RGSN.data_ptr(),
        keys_RGSN.stride(0),
        keys_RGSN.stride(1),
        lengths_B.data_ptr(),
        None if seen_BQQ is None else seen_BQQ.data_ptr(),
        out_TE.data_ptr(),
        rows,
        tokens // rows,
        heads,
        groups,
        width,
        threads_for(tokens // rows * heads * width * positions),
    )
    return out_TE


_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_ARGUMENTS = {
    "rms_norm": [*[_POINTER] * 3, *[_LONG] * 2, _FLOAT],
    "silu_multiply": [*[_POINTER] * 2, *[_LONG] * 2],
    "attend_step": [
        *[_POINTER] * 3,
        *[_LONG] * 2,
        *[_POINTER] * 2,
        *[_LONG] * 2,
        *[_POINTER] * 3,
        *[_LONG] * 5,
        _INT,
    ],
}


@cache
def _function(name: str) -> Any:
    kernels = load_kernels("step")
    assert kernels is not None, "fits() was not asked"
    function = getattr(kernels, name)
    function.argtypes = _ARGUMENTS[name]
    function.restype = None
    return function
