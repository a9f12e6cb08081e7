"""One decoder layer of the Llama kind, with its projections fused.

Query, key and value come from one product, gate and up from another: fewer and larger reads of
weights. Shapes: T tokens of all rows, D target width, H query heads, G key-value heads,
N head width, F inner width.
"""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.targets.attention import Attention
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.kernels import step
from eagleray.targets.linear import FrozenLinear
from eagleray.targets.rotary import alternate_halves, rotate_


class RMSNorm:
    """Root-mean-square norm over the last dimension."""

    def __init__(self, weight_D: Tensor, eps: float):
        self.weight_D = weight_D
        self.eps = eps
        self._compiled = step.fits(weight_D, len(weight_D))

    def __call__(self, x_TD: Tensor) -> Tensor:
        """Returns the shape it is given."""
        if self._compiled:
            return step.rms_norm(x_TD, self.weight_D, self.eps)
        return F.rms_norm(x_TD, self.weight_D.shape, self.weight_D, self.eps)


class DecoderLayer:
    """Attention and feed-forward with residuals, inference only.

    Args:
        index: Position of the layer, which the attention's cache is told.
        weights: Tensors of this layer by their names within it.
    """

    def __init__(
        self, geometry: TargetGeometry, index: int, weights: Mapping[str, Tensor], *, batch_invariant: bool
    ):
        linear = partial(FrozenLinear, batch_invariant=batch_invariant)
        self.index = index
        self.num_heads = geometry.num_heads
        self.num_rotated_heads = geometry.num_heads + geometry.num_kv_heads
        self.head_dim = geometry.head_dim
        eps = geometry.rms_norm_eps
        self.attention_norm = RMSNorm(weights["input_layernorm.weight"], eps)
        self.mlp_norm = RMSNorm(weights["post_attention_layernorm.weight"], eps)
        self.qkv = linear(*_fuse_qkv(weights, geometry))
        self.output = linear(weights["self_attn.o_proj.weight"], weights.get("self_attn.o_proj.bias"))
        self.head_norms = _head_norms(weights, geometry)
        self.gate_up = linear(torch.cat([weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"]]))
        self.down = linear(weights["mlp.down_proj.weight"])
        self._compiled = step.fits(weights["mlp.down_proj.weight"], geometry.intermediate_size)

    def __call__(self, hidden_TD: Tensor, rotation: Tensor, attention: Attention) -> Tensor:
        """Returns the residual stream after this layer [T, D]; the input is left as it is."""
        query_THN, key_TGN, value_TGN = self._project(self.attention_norm(hidden_TD), rotation)
        mixed = attention(self.index, query_THN, key_TGN, value_TGN)
        hidden_TD = hidden_TD + self.output(mixed)
        return hidden_TD + self.down(self._gated(self.gate_up(self.mlp_norm(hidden_TD))))

    def _gated(self, gate_up_TF: Tensor) -> Tensor:
        if self._compiled:
            return step.silu_multiply(gate_up_TF)
        gate_TF, up_TF = gate_up_TF.chunk(2, dim=-1)
        return F.silu(gate_TF).mul_(up_TF)

    def _project(self, x_TD: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.qkv(x_TD).unflatten(-1, (-1, self.head_dim))
        rotated, value_TGN = heads[:, : self.num_rotated_heads], heads[:, self.num_rotated_heads :]
        if self.head_norms is not None:
            rotated = F.rms_norm(rotated, (self.head_dim,), None, self.attention_norm.eps) * self.head_norms
        rotate_(rotated, rotation)
        return rotated[:, : self.num_heads], rotated[:, self.num_heads :], value_TGN


def _fuse_qkv(weights: Mapping[str, Tensor], geometry: TargetGeometry) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the joint projection."""

    def fuse(kind: str) -> Tensor:
        query, key, value = (weights[f"self_attn.{name}_proj.{kind}"] for name in ("q", "k", "v"))
        rotated = [alternate_halves(tensor, geometry.head_dim) for tensor in (query, key)]
        return torch.cat([*rotated, value])

    return fuse("weight"), fuse("bias") if geometry.attention_bias else None


def _head_norms(weights: Mapping[str, Tensor], geometry: TargetGeometry) -> Tensor | None:
    """Norm weights of all query and key heads [H + G, N], or None for families without."""
    if "self_attn.q_norm.weight" not in weights:
        return None
    query, key = (
        alternate_halves(weights[f"self_attn.{name}_norm.weight"], geometry.head_dim) for name in ("q", "k")
    )
    return torch.cat([query.expand(geometry.num_heads, -1), key.expand(geometry.num_kv_heads, -1)])
