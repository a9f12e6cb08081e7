"""Layers that drafters share: SwiGLU, grouped-query projections, rotary positions.

Module and parameter names are the ones that SGLang and vLLM load, so an export renames nothing.
Shapes: N packed rows, H query heads, G key/value heads, d width of a head, D hidden width.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagleray.drafters.blocks.config import LayerShape
from eagleray.errors import ConfigError
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.rotary import rotary_frequencies


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """Resolved shape of a drafter layer."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float

    @classmethod
    def resolve(cls, shape: LayerShape, geometry: TargetGeometry) -> "Dimensions":
        """Fill what `shape` leaves open from the target.

        Raises:
            ConfigError: The key/value heads do not divide the query heads.
        """
        num_heads = shape.num_heads or geometry.num_heads
        num_kv_heads = shape.num_kv_heads or geometry.num_kv_heads
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"The drafter has {num_heads} query heads and {num_kv_heads} key/value heads; the latter "
                "must divide the former. Set drafter.num_heads or drafter.num_kv_heads."
            )
        return cls(
            hidden_size=geometry.hidden_size,
            intermediate_size=shape.intermediate_size or geometry.intermediate_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=shape.head_dim or geometry.head_dim,
            rms_norm_eps=geometry.rms_norm_eps,
        )

    def as_config(self) -> dict[str, int | float]:
        """The keys of a Hugging Face configuration that hold these numbers."""
        return {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.rms_norm_eps,
        }


class SwiGLU(nn.Module):
    """Gated MLP without biases."""

    def __init__(self, dimensions: Dimensions):
        super().__init__()
        width, inner = dimensions.hidden_size, dimensions.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        out_ND: Tensor = self.down_proj(F.silu(self.gate_proj(hidden_ND)) * self.up_proj(hidden_ND))
        return out_ND


class Projections(nn.Module):
    """Query, key, value and output matrices of grouped-query attention.

    Args:
        input_width: Width of what queries, keys and values are made from.
        normalise: RMSNorm over each query and key head (the Qwen3 flavour).
        bias: Biases of queries, keys and values (the Qwen2 flavour); they start at zero.
    """

    def __init__(self, dimensions: Dimensions, input_width: int, *, normalise: bool, bias: bool = False):
        super().__init__()
        self.num_kv_heads = dimensions.num_kv_heads
        self.head_dim = dimensions.head_dim
        query_width = dimensions.num_heads * dimensions.head_dim
        kv_width = dimensions.num_kv_heads * dimensions.head_dim
        self.q_proj = nn.Linear(input_width, query_width, bias=bias)
        self.k_proj = nn.Linear(input_width, kv_width, bias=bias)
        self.v_proj = nn.Linear(input_width, kv_width, bias=bias)
        self.o_proj = nn.Linear(query_width, dimensions.hidden_size, bias=False)
        if bias:
            for projection in (self.q_proj, self.k_proj, self.v_proj):
                nn.init.zeros_(projection.bias)
        if normalise:
            self.q_norm = nn.RMSNorm(dimensions.head_dim, eps=dimensions.rms_norm_eps)
            self.k_norm = nn.RMSNorm(dimensions.head_dim, eps=dimensions.rms_norm_eps)
        self.normalise = normalise

    def queries(self, source_ND: Tensor, angles: "Angles") -> Tensor:
        """Rotated queries [N, H, d]."""
        queries_NHd = self.q_proj(source_ND).unflatten(-1, (-1, self.head_dim))
        return angles.rotate(self.q_norm(queries_NHd) if self.normalise else queries_NHd)

    def keys_values(self, source_ND: Tensor, angles: "Angles") -> tuple[Tensor, Tensor]:
        """Rotated keys and plain values, both [N, G, d]."""
        keys_NGd = self.k_proj(source_ND).unflatten(-1, (-1, self.head_dim))
        values_NGd = self.v_proj(source_ND).unflatten(-1, (-1, self.head_dim))
        return angles.rotate(self.k_norm(keys_NGd) if self.normalise else keys_NGd), values_NGd


@dataclass(frozen=True)
class Angles:
    """Rotary factors of some positions, shaped to broadcast over heads."""

    cos_N1d: Tensor
    signed_sin_N1d: Tensor
    """Sine, negated in the first half, so that a roll by half a head does the rotation."""

    def rotate(self, heads_NHd: Tensor) -> Tensor:
        """Rotate each head by its position (halves, not interleaved pairs)."""
        rolled_NHd = heads_NHd.roll(heads_NHd.shape[-1] // 2, -1)
        return torch.addcmul(heads_NHd * self.cos_N1d, rolled_NHd, self.signed_sin_N1d)


class Rotary(nn.Module):
    """Rotary positions with the theta and the scaling of the target.

    Raises:
        ArtifactError: A scaling whose frequencies depend on the length of the sequence.
    """

    frequencies: Tensor

    def __init__(self, geometry: TargetGeometry, head_dim: int):
        super().__init__()
        frequencies, self.magnitude = rotary_frequencies(replace(geometry, head_dim=head_dim))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, positions_N: Tensor) -> Angles:
        """Factors of int64 positions."""
        angles = positions_N[:, None, None] * self.frequencies
        cos, sin = angles.cos() * self.magnitude, angles.sin() * self.magnitude
        return Angles(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
