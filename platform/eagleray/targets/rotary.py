"""Rotary position embedding as one complex product.

Checkpoints pair dimension i of a head with i + N/2. Reordering the rows of the query and key
weights so that the two halves alternate turns each pair into one complex number, and the rotation
into one in-place multiplication; scores do not change, as queries and keys are reordered alike.
Shapes: T tokens, H heads, N head width.
"""

import torch
from torch import Tensor

from eagleray.errors import ArtifactError
from eagleray.targets.geometry import TargetGeometry

STATIC_SCALINGS = ("linear", "llama3", "yarn")
"""Scalings whose frequencies do not depend on the length of the sequence at hand."""


class Rotary:
    """The rotation of a target, for any position."""

    def __init__(self, geometry: TargetGeometry, device: torch.device):
        inverse_frequencies, self.magnitude = rotary_frequencies(geometry)
        self.inverse_frequencies = inverse_frequencies.to(device)

    def factors(self, positions_T: Tensor) -> Tensor:
        """Complex factors [T, 1, N/2] of integer positions."""
        angles = positions_T[:, None, None] * self.inverse_frequencies
        return torch.polar(torch.full_like(angles, self.magnitude), angles)


def rotate_(x_THN: Tensor, factors: Tensor) -> None:
    """Rotate heads of alternating halves in place."""
    pairs = torch.view_as_complex(x_THN.float().unflatten(-1, (-1, 2)))
    pairs.mul_(factors)
    if x_THN.dtype != torch.float32:
        x_THN.copy_(torch.view_as_real(pairs).flatten(-2))


def alternate_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of a query or key weight (or bias, or per-head norm) as `rotate_` expects them."""
    heads = weight.unflatten(0, (-1, 2, head_dim // 2))
    return heads.transpose(1, 2).reshape(weight.shape)


def rotary_frequencies(geometry: TargetGeometry) -> tuple[Tensor, float]:
    """Angle per position of each pair of head dimensions, and the factor the scaling puts on the rotation.

    Raises:
        ArtifactError: The scaling depends on the length of the sequence.
    """
    if geometry.rope_scaling is None:
        exponents = torch.arange(0, geometry.head_dim, 2, dtype=torch.float32) / geometry.head_dim
        return 1.0 / geometry.rope_theta**exponents, 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = dict(geometry.rope_scaling)
    kind = scaling.pop("type", None) or scaling["rope_type"]
    if kind not in STATIC_SCALINGS:
        raise ArtifactError(
            f"Target has rope scaling {kind!r}; the native decoder runs {', '.join(STATIC_SCALINGS)}. "
            "Choose another target, or serve this one with another engine."
        )
    config = LlamaConfig(
        hidden_size=geometry.hidden_size,
        num_attention_heads=geometry.num_heads,
        head_dim=geometry.head_dim,
        max_position_embeddings=geometry.max_position_embeddings,
        rope_parameters={**scaling, "rope_type": kind, "rope_theta": geometry.rope_theta},
    )
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config)
    return frequencies, magnitude
