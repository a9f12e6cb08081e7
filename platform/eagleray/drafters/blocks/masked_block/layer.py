"""The layer that fills blocks, and what it does with the committed positions before them.

Shapes: N rows of any number of dimensions, D width, E = H * d attended width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from eagleray.drafters.blocks.layers import Dimensions, Projections, SwiGLU

Attend = Callable[[Tensor], Tensor]
"""From the rows that queries, keys and values are made of [..., D] to what they attended [..., E]."""


class MaskedBlockLayer(nn.Module):
    """A decoder layer over block rows; the target's features of committed positions are injected:
    they pass through its key and value matrices alone."""

    injects = True
    """Whether keys and values of committed positions are made of the same state in every layer."""

    def __init__(self, dimensions: Dimensions):
        super().__init__()
        width, eps = dimensions.hidden_size, dimensions.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.self_attn = Projections(dimensions, width, normalise=True)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)
        self.mlp = SwiGLU(dimensions)

    def forward(self, hidden_ND: Tensor, attend: Attend) -> Tensor:
        """Residual updates by attention and MLP."""
        hidden_ND = hidden_ND + self.mix(self.input_layernorm(hidden_ND), attend)
        return hidden_ND + self.transform(self.post_attention_layernorm(hidden_ND))

    def mix(self, source_ND: Tensor, attend: Attend) -> Tensor:
        """The attention sublayer, from its normed input."""
        mixed_ND: Tensor = self.self_attn.o_proj(attend(source_ND))
        return mixed_ND

    def transform(self, source_ND: Tensor) -> Tensor:
        """The MLP sublayer, from its normed input."""
        transformed_ND: Tensor = self.mlp(source_ND)
        return transformed_ND

    def context_source(self, context_ND: Tensor) -> Tensor:
        """What keys and values of committed positions are made from."""
        return context_ND

    def carry(self, context_ND: Tensor, attend: Attend) -> Tensor:
        """States of the committed positions for the next layer: the same for every layer."""
        return context_ND
