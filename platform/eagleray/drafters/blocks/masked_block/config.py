"""Settings that `dflash` and `dflash2` share: a block of masked slots and the layers that fill it."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from eagleray.drafters.blocks.config import FusedLayers, LayerShape
from eagleray.targets.geometry import TargetGeometry

LayerType = Literal["full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Reach:
    """What one layer lets a slot attend to."""

    window: int | None
    """Positions back from the slot, its own included. None: all."""
    causal: bool
    """Of its own block a slot sees the slots up to itself only."""


class MaskedBlockConfig(LayerShape, FusedLayers):
    """The block, what its layers see, and how its slots are judged in training."""

    block_size: int = Field(default=8, gt=1)
    """Slots of a block, anchor included: a block drafts at most `block_size - 1` tokens."""

    num_layers: int = Field(default=2, gt=0)
    """Drafter layers."""

    layer_types: tuple[LayerType, ...] | None = None
    """One entry per layer; a sliding layer attends to `sliding_window` positions. None: all are full."""

    sliding_window: int | None = Field(default=None, gt=0)
    """Positions that a slot of a sliding layer sees, its own included; at least `block_size`."""

    is_causal: bool | None = False
    """Whether a slot sees of its own block only the slots up to itself, in every layer. None: sliding
    layers are causal and full ones are not, which is how engines read an export without this key."""

    mask_token_id: int | None = Field(default=None, ge=0)
    """Id whose target embedding fills the slots to predict; below the target vocabulary.

    None: the lowest id that is not the target's beginning, padding or stop id.
    """

    num_anchors: int = Field(default=512, gt=0)
    """Blocks trained per sequence and step, anchored at random supervised tokens."""

    slot_weighting: Literal["decay", "dpace"] = "decay"
    """How the slots of a block weigh in the loss. `decay`: slot k by exp(-(k - 1) / gamma). `dpace`
    (arXiv 2605.18810): by how many tokens the drafter, as it is now, is likely to have accepted from
    this slot on."""

    gamma: float = Field(default=4.0, gt=0)
    """Reach of the `decay` weighting, in slots. Usual: 4 for blocks of 8, 5 for 10, 7 for 16."""

    dpace_alpha: float = Field(default=0.5, ge=0, le=1)
    """Floor of the `dpace` weighting: a slot counts as accepted with probability
    (1 - dpace_alpha) q + dpace_alpha, q being the drafter's for the right token."""

    soft_targets: bool = False
    """Learn the target's distribution instead of the token it emitted."""

    @model_validator(mode="after")
    def _layers_fit(self) -> "MaskedBlockConfig":
        if self.layer_types is not None and len(self.layer_types) != self.num_layers:
            raise ValueError(
                f"layer_types has {len(self.layer_types)} entries for num_layers {self.num_layers}; "
                "give one per layer"
            )
        slides = "sliding_attention" in (self.layer_types or ())
        if slides and (self.sliding_window is None or self.sliding_window < self.block_size):
            raise ValueError(
                f"sliding_window is {self.sliding_window}, but a layer slides; "
                f"set it to block_size {self.block_size} or more"
            )
        return self

    @property
    def max_depth(self) -> int:
        """Every slot but the anchor's."""
        return self.block_size - 1

    def num_parameters(self, geometry: TargetGeometry) -> int:
        """Fusion, layers with their norms, and the norms of injected and of final states."""
        width, taps = geometry.hidden_size, len(self.tapped_layers(geometry.num_layers))
        head_norms = 2 * (self.head_dim or geometry.head_dim)
        layer = self.layer_matrices(geometry) + 2 * width + head_norms
        return taps * width * width + self.num_layers * layer + 2 * width

    @property
    def score_copies(self) -> int:
        """Times that a slot's scores are kept for the backward pass."""
        return 1

    def extra_row_width(self, geometry: TargetGeometry) -> int:
        """Numbers that a layer keeps of a slot for the backward pass, besides those of every such layer."""
        return 0

    def reach(self, layer: int) -> Reach:
        """What a slot of layer `layer` attends to."""
        slides = self.layer_types is not None and self.layer_types[layer] == "sliding_attention"
        causal = slides if self.is_causal is None else self.is_causal
        return Reach(self.sliding_window if slides else None, causal)
