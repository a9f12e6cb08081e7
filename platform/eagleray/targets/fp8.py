"""Weights stored as eight-bit floats, read back into the numbers that are computed with.

A checkpoint keeps a scale beside each such weight: one for all of it, one for each output row
(`weight_scale`, compressed-tensors), or one for each block of 128 x 128 (`weight_scale_inv`, DeepSeek's and
Qwen3's). In spite of its name the last one is multiplied with, too. Scales of activations are of no use here:
the products are computed in the target's dtype.
Shapes: O outputs, I inputs; o, i blocks of them.
"""

from torch import Tensor

BLOCK = 128
SCALES = ("weight_scale", "weight_scale_inv")
"""Last parts of the names that scales have, where their weight's is `weight`."""
IGNORED = ("input_scale", "k_scale", "v_scale")
"""Of activations and of a cache in eight bits."""


def dequantise(weight_OI: Tensor, scale: Tensor) -> Tensor:
    """The weight in float32.

    Args:
        scale: Of one number, of shape [O] or [O, 1], or of blocks [o, i].

    Raises:
        ValueError: It is of no such shape.
    """
    rows, columns = weight_OI.shape
    scale = scale.float()
    if scale.numel() == 1:
        return weight_OI.float() * scale.reshape(())
    if scale.numel() == rows and scale.shape[0] == rows:
        return weight_OI.float() * scale.reshape(rows, 1)
    if tuple(scale.shape) == (-(-rows // BLOCK), -(-columns // BLOCK)):
        blocks_OI = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return weight_OI.float() * blocks_OI[:rows, :columns]
    raise ValueError(f"a scale of shape {tuple(scale.shape)} does not fit a weight of {rows} x {columns}")
