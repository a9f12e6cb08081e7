"""Settings of the DFlash drafter."""

from typing import Literal

from pydantic import Field

from eagleray.drafters.blocks.config import LayerShape


class DFlashConfig(LayerShape):
    """Layers that fill a masked block in one forward, the target's features injected as keys and values."""

    name: Literal["dflash"] = "dflash"
    """Which drafter this section configures."""

    block_size: int = Field(default=8, gt=1)
    """Slots of a block, anchor included: a block drafts at most `block_size - 1` tokens."""

    num_layers: int = Field(default=2, gt=0)
    """Drafter layers."""

    mask_token_id: int | None = Field(default=None, ge=0)
    """Id whose target embedding fills the slots to predict; below the target vocabulary.

    None: the lowest id that is not the target's beginning, padding or stop id.
    """

    draft_vocab_size: int | None = Field(default=None, gt=0)
    """Target ids the drafter can propose: those that occur most as supervised tokens. None: all, with the
    target's whole lm_head.

    A number makes training and drafting cheaper. vLLM then reads the map and the reduced head from the
    export; SGLang does not know reduced vocabularies for DFlash, so leave it None to serve there.
    """

    num_anchors: int = Field(default=512, gt=0)
    """Blocks trained per sequence and step, anchored at random supervised tokens."""

    gamma: float = Field(default=4.0, gt=0)
    """Slot k weighs exp(-(k - 1) / gamma) in the loss. Usual: 4 for blocks of 8, 5 for 10, 7 for 16."""

    soft_targets: bool = False
    """Learn the target's distribution instead of the token it emitted."""

    @property
    def max_depth(self) -> int:
        """Every slot but the anchor's."""
        return self.block_size - 1
