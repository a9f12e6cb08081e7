"""Settings that drafters share: what they propose, what they tap, and the shape of their layers."""

from pydantic import Field

from eagleray.drafters.config import DrafterConfig
from eagleray.targets.geometry import TargetGeometry


class HeadedConfig(DrafterConfig):
    """Settings of a drafter that scores tokens with an output matrix."""

    draft_vocab_size: int | None = Field(default=None, gt=0)
    """Target ids the drafter can propose: those that occur most as supervised tokens. None: all."""

    def drafted_ids(self, geometry: TargetGeometry) -> int:
        """How many ids there are to propose."""
        return min(self.draft_vocab_size or geometry.vocab_size, geometry.vocab_size)


class LayerShape(HeadedConfig):
    """Shape of a decoder layer; the width is always the target's, whose embedding the drafter borrows."""

    intermediate_size: int | None = Field(default=None, gt=0)
    """Width of the MLP. None: the target's."""

    num_heads: int | None = Field(default=None, gt=0)
    """Query heads. None: the target's."""

    num_kv_heads: int | None = Field(default=None, gt=0)
    """Key and value heads; must divide the query heads. None: the target's."""

    head_dim: int | None = Field(default=None, gt=0, multiple_of=2)
    """Width of one head. None: the target's."""

    def inner_width(self, geometry: TargetGeometry) -> int:
        """Width of the MLP."""
        return self.intermediate_size or geometry.intermediate_size

    def query_width(self, geometry: TargetGeometry) -> int:
        """Width of all query heads together."""
        return (self.num_heads or geometry.num_heads) * (self.head_dim or geometry.head_dim)

    def kv_width(self, geometry: TargetGeometry) -> int:
        """Width of all key heads together, and of all value heads."""
        return (self.num_kv_heads or geometry.num_kv_heads) * (self.head_dim or geometry.head_dim)

    def layer_matrices(self, geometry: TargetGeometry, input_widths: int = 1) -> int:
        """Entries of a layer's matrices.

        Args:
            input_widths: Width of what attention is made from, in widths of the target.
        """
        width, queries, keys = geometry.hidden_size, self.query_width(geometry), self.kv_width(geometry)
        attention = input_widths * width * (queries + 2 * keys) + queries * width
        return attention + 3 * width * self.inner_width(geometry)


class FusedLayers(HeadedConfig):
    """Which target layers are fused."""

    target_layer_ids: tuple[int, ...] | None = None
    """Target layers whose outputs are fused, 0-based, strictly increasing.
    None: 1, N//2 - 1 and N - 4 of N layers."""

    def tapped_layers(self, num_layers: int) -> tuple[int, ...]:
        """The ids of the settings, else those that published EAGLE-3 drafters fuse: early, middle, late."""
        if self.target_layer_ids is not None:
            return self.target_layer_ids
        wanted = (1, num_layers // 2 - 1, num_layers - 4)
        return tuple(sorted({min(max(layer, 0), num_layers - 1) for layer in wanted}))
