"""Settings of the Medusa drafter."""

from typing import Literal

from pydantic import Field, model_validator

from eagleray.drafters.blocks.config import HeadedConfig
from eagleray.targets.geometry import TargetGeometry


class MedusaConfig(HeadedConfig):
    """Heads that each predict one of the next tokens from the target's last hidden state alone."""

    name: Literal["medusa"] = "medusa"
    """Which drafter this section configures."""

    num_heads: int = Field(default=5, gt=0)
    """Heads, one for each draft slot. vLLM drafts exactly as many tokens."""

    num_blocks: int = Field(default=1, gt=0)
    """Residual blocks of each head."""

    output: Literal["target", "shared", "own"] = "shared"
    """Where scores come from: the target's frozen lm_head, one trained copy of it for all heads, or a trained
    copy for each head, as the paper has it. The last costs `num_heads` times the target's lm_head."""

    soft_targets: bool = True
    """Learn the target's distribution instead of the token it emitted."""

    head_loss_decay: float = Field(default=0.8, gt=0, le=1)
    """Weight of each head's loss relative to the head before it."""

    @model_validator(mode="after")
    def _reduced_heads_are_shared(self) -> "MedusaConfig":
        if self.output == "own" and self.draft_vocab_size is not None:
            raise ValueError(
                f"draft_vocab_size is {self.draft_vocab_size} with output 'own'; vLLM reads a reduced "
                "vocabulary only where heads share one matrix. Set output to 'shared' or 'target', or "
                "draft_vocab_size to null"
            )
        return self

    def tapped_layers(self, num_layers: int) -> tuple[int, ...]:
        """None: the state after the final norm is all that heads read."""
        return ()

    @property
    def max_depth(self) -> int:
        """One token a head."""
        return self.num_heads

    def num_parameters(self, geometry: TargetGeometry) -> int:
        """Blocks of all heads, and the copies of the output matrix."""
        width = geometry.hidden_size
        copies = {"target": 0, "shared": 1, "own": self.num_heads}[self.output]
        blocks = self.num_heads * self.num_blocks * (width * width + width)
        return blocks + copies * self.drafted_ids(geometry) * width
