"""Settings that every transformer drafter shares: the shape of its layers."""

from pydantic import Field

from eagleray.settings import Settings


class LayerShape(Settings):
    """Shape of a drafter layer; the width is always the target's, whose embedding the drafter borrows."""

    intermediate_size: int | None = Field(default=None, gt=0)
    """Width of the MLP. None: the target's."""

    num_heads: int | None = Field(default=None, gt=0)
    """Query heads. None: the target's."""

    num_kv_heads: int | None = Field(default=None, gt=0)
    """Key and value heads; must divide the query heads. None: the target's."""

    head_dim: int | None = Field(default=None, gt=0, multiple_of=2)
    """Width of one head. None: the target's."""
