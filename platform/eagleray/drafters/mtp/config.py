"""Settings of the MTP drafter."""

from typing import Literal

from pydantic import Field

from eagleray.drafters.blocks.chain.config import ChainConfig
from eagleray.targets.geometry import TargetGeometry


class MTPConfig(ChainConfig):
    """A multi-token prediction layer for a target that was trained without one.

    It drafts from the target's last hidden state; its embedding and output matrix are the target's, frozen.
    """

    name: Literal["mtp"] = "mtp"
    """Which drafter this section configures."""

    draft_vocab_size: int | None = Field(default=None, gt=0)
    """Target ids the drafter can propose: those that occur most as supervised tokens. None: all.

    A number makes training and native drafting cheaper. Engines know no reduced vocabulary for MTP and
    would draft with the target's whole lm_head, so leave it None to serve there.
    """

    step_loss_decay: float = Field(default=0.8, gt=0, le=1)
    """Weight of each unrolled step relative to the one before it."""

    soft_targets: bool = True
    """Learn the target's distribution instead of the token it emitted."""

    def tapped_layers(self, num_layers: int) -> tuple[int, ...]:
        """None: the state after the final norm is all that it reads."""
        return ()

    def num_parameters(self, geometry: TargetGeometry) -> int:
        """Mixing of state and token, one layer with biases of queries, keys and values, and five norms."""
        width = geometry.hidden_size
        biases = self.query_width(geometry) + 2 * self.kv_width(geometry)
        return 2 * width * width + self.layer_matrices(geometry) + biases + 5 * width
