"""Settings of the DFlash 2 drafter."""

from typing import Literal

from pydantic import Field

from eagleray.drafters.blocks.masked_block.config import MaskedBlockConfig
from eagleray.targets.geometry import TargetGeometry


class DFlash2Config(MaskedBlockConfig):
    """DFlash with convolutions along the block and a selector that chooses slot by slot.

    Starts as DFlash exactly: its new parts change nothing until they are trained, so it can go on from
    the weights of a `dflash` export.
    """

    name: Literal["dflash2"] = "dflash2"
    """Which drafter this section configures."""

    draft_vocab_size: int | None = Field(default=None, gt=0)
    """Target ids the drafter can propose: those that occur most as supervised tokens. None: all, with the
    target's whole lm_head. Only the native engine drafts over a reduced vocabulary with this drafter."""

    conv_kernel_size: int = Field(default=2, gt=0)
    """Slots that one convolution reaches: its own and the ones right before it."""

    conv_group_size: int = Field(default=16, gt=0)
    """Channels that share one input-dependent coefficient; must divide the target's width."""

    selector_rank: int = Field(default=64, gt=0)
    """Width of the selector's token vectors, two for each target id. The published 27B drafter: 256."""

    selector_top_k: int = Field(default=16, gt=0)
    """Best tokens of each slot among which the selector chooses."""

    selector_weight: float = Field(default=1.0, ge=0)
    """What the selector's cross-entropy weighs beside that of the slots. No published value is known."""

    def num_parameters(self, geometry: TargetGeometry) -> int:
        """Those of the network, two convolutions in each layer, and the selector."""
        width = geometry.hidden_size
        shared = width // self.conv_group_size
        convolution = 2 * self.conv_kernel_size * width * (1 + shared)
        selector = self.selector_rank * (2 * geometry.vocab_size + width)
        return super().num_parameters(geometry) + 2 * self.num_layers * convolution + selector

    @property
    def score_copies(self) -> int:
        """Those of the network, and those that the selector chooses among."""
        return 2

    def extra_row_width(self, geometry: TargetGeometry) -> int:
        """Kernels, shifted rows and their products of both convolutions."""
        return (9 * self.conv_kernel_size + 2) * geometry.hidden_size
