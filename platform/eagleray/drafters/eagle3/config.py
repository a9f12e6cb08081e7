"""Settings of the EAGLE-3 drafter."""

from typing import Literal

from pydantic import Field

from eagleray.drafters.blocks.chain.config import ChainConfig
from eagleray.drafters.blocks.config import FusedLayers
from eagleray.targets.geometry import TargetGeometry


class Eagle3Config(ChainConfig, FusedLayers):
    """One decoder layer that drafts recursively from fused target features."""

    name: Literal["eagle3"] = "eagle3"
    """Which drafter this section configures."""

    draft_vocab_size: int = Field(default=32000, gt=0)
    """Target ids the drafter can propose: those that occur most as supervised tokens.

    A size of the target vocabulary or more keeps all of it.
    """

    norm_before_residual: bool = True
    """Normalise the fused features before, not after, they enter the residual stream. Features of large
    entries otherwise drown what the layer adds. vLLM reads this from the export; set False for an engine
    whose EAGLE-3 code does not know the key, as it would run the layer the other way without an error.
    """

    feature_norm: Literal["none", "per_layer", "joint"] = "none"
    """Norm of the tapped features before `fc` mixes them. `per_layer`: EAGLE 3.1's, a norm of its own for
    each layer (export key `fc_norm`). `joint`: one over all layers side by side (`norm_before_fc`)."""

    norm_output: bool = False
    """Feed the final norm's output, not its input, back into the next draft step (export key
    `norm_output`). SpecForge gives this key another meaning; SGLang and vLLM agree with ours."""

    train_head: bool = True
    """Train the drafter's own output matrix; False keeps the target's rows."""

    def num_parameters(self, geometry: TargetGeometry) -> int:
        """Fusion, one layer that reads token and state side by side, its norms, and the output matrix."""
        width, taps = geometry.hidden_size, len(self.tapped_layers(geometry.num_layers))
        feature_norms = 0 if self.feature_norm == "none" else taps * width
        head = self.drafted_ids(geometry) * width if self.train_head else 0
        layer = self.layer_matrices(geometry, input_widths=2) + 4 * width
        return taps * width * width + feature_norms + layer + head
