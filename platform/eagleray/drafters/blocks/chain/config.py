"""Settings of drafters that draft one token after another with one decoder layer."""

from pydantic import Field

from eagleray.drafters.blocks.config import LayerShape

MAX_DEPTH = 32
"""Deepest chain a session makes room for; far beyond where chains pay."""


class ChainConfig(LayerShape):
    """How a chain is rehearsed in training."""

    ttt_steps: int = Field(default=3, gt=0)
    """Training-time test: how many draft steps are unrolled in training."""

    step_loss_decay: float = Field(default=1.0, gt=0, le=1)
    """Weight of each unrolled step relative to the one before it."""

    @property
    def max_depth(self) -> int:
        """A chain can be drafted to any depth there is room for."""
        return MAX_DEPTH
