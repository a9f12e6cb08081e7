"""Settings of prompt lookup."""

from typing import Literal

from pydantic import Field, model_validator

from eagleray.drafters.config import DrafterConfig
from eagleray.targets.geometry import TargetGeometry


class PromptLookupConfig(DrafterConfig):
    """Draft by copying what followed the same words earlier in the sequence. Needs no training."""

    name: Literal["prompt_lookup"] = "prompt_lookup"
    """Selects this drafter."""

    max_ngram: int = Field(default=3, ge=1)
    """Longest run of newest tokens that is looked for, in tokens; longer runs are tried first."""

    min_ngram: int = Field(default=1, ge=1)
    """Shortest run that is looked for, in tokens. A higher value drafts more rarely and more surely."""

    @model_validator(mode="after")
    def _check_order(self) -> "PromptLookupConfig":
        if self.min_ngram > self.max_ngram:
            raise ValueError(
                f"min_ngram {self.min_ngram} exceeds max_ngram {self.max_ngram}; lower min_ngram"
            )
        return self

    @property
    def max_depth(self) -> None:
        """A copy can be of any length."""
        return None

    def tapped_layers(self, num_layers: int) -> tuple[int, ...]:
        """It reads no features."""
        return ()

    def num_parameters(self, geometry: TargetGeometry) -> int:
        """It has none."""
        return 0
