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


class LogitAdjustments(Settings):
    """What changes the target's logits before a token is chosen, as OpenAI and vLLM define it. The order:
    bias, held back stop tokens, repetition, frequency, presence."""

    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    """Taken from the logit of every token that the answer holds."""

    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    """Taken from a token's logit once for every time that the answer holds it."""

    repetition_penalty: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    """Divides the positive logits of tokens that prompt or answer hold, and multiplies negative ones."""

    logit_bias: dict[int, float] = Field(default_factory=dict)
    """Added to the logits of these token ids."""

    min_new_tokens: int = Field(default=0, ge=0)
    """Stop tokens are not chosen before this many tokens have come. Stop strings are."""

    @property
    def counts(self) -> bool:
        """Whether earlier tokens matter."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1.0)
        return any(penalty != 0.0 for penalty in penalties)


class TypicalAcceptance(Settings):
    """Accept a draft token that the target finds plausible: p(x) > min(epsilon, alpha exp(-H(p))), where H is
    the entropy of its distribution (Medusa, arXiv 2401.10774).

    Not lossless: sampled answers then have a distribution between the target's and the drafter's.
    """

    epsilon: float = Field(default=0.09, gt=0.0, lt=1.0)
    """A token at least this probable is always plausible."""

    alpha: float = Field(default=0.3, gt=0.0, le=1.0)
    """Where the target is unsure, less probable ones are, too."""


class TreeSetting(Settings):
    """Bounds of a draft tree, in the terms of EAGLE-2; its depth is the draft's."""

    top_k: int = Field(default=8, ge=1)
    """Children that a node may get, and nodes of one depth that are expanded: the most confident ones."""

    nodes: int = Field(default=60, ge=1)
    """Tokens of a row that are verified at most: of all that were drafted, the most confident ones.
    Confidence is the product of the drafter's probabilities along the path."""
