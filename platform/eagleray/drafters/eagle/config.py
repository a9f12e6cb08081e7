"""Settings of the EAGLE drafter."""

from typing import Literal

from pydantic import Field

from eagleray.drafters.blocks.chain.config import ChainConfig
from eagleray.targets.geometry import TargetGeometry


class EagleConfig(ChainConfig):
    """One decoder layer that guesses the target's next feature, its last hidden state, from this one and
    the next token (EAGLE, arXiv 2401.15077)."""

    name: Literal["eagle"] = "eagle"
    """Which drafter this section configures."""

    draft_vocab_size: int | None = Field(default=None, gt=0)
    """Target ids the drafter can propose: those that occur most as supervised tokens. None: all.

    A number makes training and native drafting cheaper. Engines know no reduced vocabulary for EAGLE, so
    leave it None to serve there.
    """

    ttt_steps: int = Field(default=1, gt=0)
    """Draft steps unrolled in training. 1 is the published method; more rehearse drafting from the drafter's
    own features (HASS, arXiv 2408.15766)."""

    regression_weight: float = Field(default=1.0, ge=0)
    """Weight of the smooth L1 distance to the target's feature, a mean over its entries."""

    classification_weight: float = Field(default=0.1, ge=0)
    """Weight of the cross-entropy with the target's distribution, through its frozen lm_head."""

    feature_noise: float = Field(default=0.2, ge=0)
    """Features of a sequence of n tokens are trained on with noise, uniform in an interval of width
    feature_noise * 512 / n around them, as live features are only guesses."""

    fc_bias: bool = False
    """Add a bias where token and feature are mixed, as published. It decides which engine serves the folder:
    SGLang always adds one, and needs True; vLLM never does, and needs False."""

    def tapped_layers(self, num_layers: int) -> tuple[int, ...]:
        """None: the state after the final norm is all that it reads."""
        return ()

    def num_parameters(self, geometry: TargetGeometry) -> int:
        """Mixing of token and feature, and one layer with one norm."""
        width = geometry.hidden_size
        mixing = 2 * width * width + (width if self.fc_bias else 0)
        return mixing + self.layer_matrices(geometry) + width
