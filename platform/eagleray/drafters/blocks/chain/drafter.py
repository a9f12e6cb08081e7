"""What drafters have in common that draft one token after another with one decoder layer.

Row p of such a drafter joins what the target made of position p with the token at p + 1, and predicts
the token at p + 2. A draft goes on with the layer's own output in place of the target's.
Shapes: N packed rows, L tapped layers, D target width, E width that attention reads, U draft vocabulary.
"""

from abc import abstractmethod

from torch import Tensor, nn

from eagleray.drafters.base import DraftSession
from eagleray.drafters.blocks.chain.session import ChainSession
from eagleray.drafters.blocks.headed import HeadedDrafter
from eagleray.drafters.blocks.layers import Dimensions, Projections, Rotary, SwiGLU


class ChainLayer(nn.Module):
    """The decoder layer, after what it reads has been made."""

    self_attn: Projections
    post_attention_layernorm: nn.RMSNorm
    mlp: SwiGLU

    def finish(self, residual_ND: Tensor, attended_NE: Tensor) -> Tensor:
        """Residual updates after attention. Returns the state before any final norm."""
        hidden_ND = residual_ND + self.self_attn.o_proj(attended_NE)
        return hidden_ND + self.mlp(self.post_attention_layernorm(hidden_ND))


class ChainDrafter(HeadedDrafter):
    """A drafter with such a layer; it drafts through `ChainSession`."""

    can_draw = True
    dimensions: Dimensions
    rotary: Rotary

    @property
    @abstractmethod
    def layer(self) -> ChainLayer:
        """The layer, under whatever name engines load it."""

    @abstractmethod
    def start(self, features_NLD: Tensor, final_ND: Tensor) -> Tensor:
        """The hidden state [N, D] that a chain starts from, from what the target made of a position."""

    @abstractmethod
    def predict(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Scores over the draft vocabulary [N, U], and the state that the next draft step takes [N, D]."""

    @abstractmethod
    def enter(self, ids_N: Tensor, hidden_ND: Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream [N, D] and what attention is made from [N, E], at `positions_N`, from their
        hidden states and the tokens that follow them."""

    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        """Allocate keys and values of `max_rows` sequences."""
        return ChainSession(self, max_rows, max_length)
