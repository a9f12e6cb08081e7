"""Activation checkpointing: layers keep their inputs and compute the rest again in the backward pass.

The same operations run on the same numbers, so gradients are the same bit for bit. Random choices of a
training step come from its batch's seed and are made outside layers, so no random state is kept.
"""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from eagleray.drafters.blocks.layers import SwiGLU
from eagleray.drafters.blocks.masked_block.layer import MaskedBlockLayer

RECOMPUTED = (MaskedBlockLayer, SwiGLU)
"""Blocks that hold most of a step's activations; of nested ones the outermost."""


def recompute_activations(module: nn.Module) -> int:
    """Make the blocks inside `module` forget their activations; returns how many there are."""
    count = 0
    for child in module.children():
        if isinstance(child, RECOMPUTED):
            forward = partial(checkpoint, child.forward, use_reentrant=False, preserve_rng_state=False)
            child.forward = forward  # type: ignore[method-assign]
            count += 1
        else:
            count += recompute_activations(child)
    return count
