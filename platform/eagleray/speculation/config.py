"""How a token is chosen from the target's distribution, and how a draft may branch."""

from pydantic import Field

from eagleray.settings import Settings


class SamplingConfig(Settings):
    """Sampling of one request. The filters apply one after another: temperature, top_k, top_p, min_p."""

    temperature: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Logits are divided by this. 0 takes the likeliest token (greedy), and no filter has an effect."""

    top_k: int | None = Field(default=None, ge=1)
    """Keep this many of the likeliest tokens. None keeps all."""

    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Keep the likeliest tokens whose probabilities first add up to this. 1 keeps all."""

    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Keep tokens at least this probable relative to the likeliest one. 0 keeps all."""

    @property
    def greedy(self) -> bool:
        """Whether no chance is involved."""
        return self.temperature == 0.0


GREEDY = SamplingConfig()
"""Always the likeliest token."""


class TreeSetting(Settings):
    """Bounds of a draft tree, in the terms of EAGLE-2; its depth is the draft's."""

    top_k: int = Field(default=8, ge=1)
    """Children that a node may get, and nodes of one depth that are expanded: the most confident ones."""

    nodes: int = Field(default=60, ge=1)
    """Tokens of a row that are verified at most: of all that were drafted, the most confident ones.
    Confidence is the product of the drafter's probabilities along the path."""
