"""Strict reading of a Hugging Face decoder folder.

Every tensor that the family needs must be there with its shape, and nothing else may be: an
unknown name means layers that would silently be left out.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from eagleray.errors import ArtifactError
from eagleray.targets.fp8 import IGNORED, SCALES, dequantise
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import EMBEDDING, LM_HEAD

FINAL_NORM = "model.norm.weight"
OUTPUT_BIAS_FAMILIES = ("llama", "qwen3")
"""Families whose `attention_bias` covers o_proj too."""


def expected_shapes(geometry: TargetGeometry) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a target, lm_head only if it is not tied."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (geometry.vocab_size, geometry.hidden_size),
        FINAL_NORM: (geometry.hidden_size,),
    }
    if not geometry.tie_word_embeddings:
        shapes[LM_HEAD] = (geometry.vocab_size, geometry.hidden_size)
    layer = _layer_shapes(geometry)
    for index in range(geometry.num_layers):
        shapes |= {f"{layer_prefix(index)}{name}": shape for name, shape in layer.items()}
    return shapes


def layer_prefix(index: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"model.layers.{index}."


def select_layer(weights: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """The tensors of a layer by their names within it."""
    prefix = layer_prefix(index)
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _layer_shapes(geometry: TargetGeometry) -> dict[str, tuple[int, ...]]:
    width, inner = geometry.hidden_size, geometry.intermediate_size
    query_width = geometry.num_heads * geometry.head_dim
    kv_width = geometry.num_kv_heads * geometry.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (query_width, width),
        "self_attn.k_proj.weight": (kv_width, width),
        "self_attn.v_proj.weight": (kv_width, width),
        "self_attn.o_proj.weight": (width, query_width),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    if geometry.attention_bias:
        shapes["self_attn.q_proj.bias"] = (query_width,)
        shapes["self_attn.k_proj.bias"] = shapes["self_attn.v_proj.bias"] = (kv_width,)
        if geometry.model_type in OUTPUT_BIAS_FAMILIES:
            shapes["self_attn.o_proj.bias"] = (width,)
    if geometry.model_type == "qwen3":
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (geometry.head_dim,)
    return shapes


def read_weights(
    folder: Path, geometry: TargetGeometry, dtype: torch.dtype, place: Callable[[str], torch.device]
) -> dict[str, Tensor]:
    """Read all tensors of a target, sharded or not, weights in eight bits with their scales applied.

    Args:
        place: Device of a tensor by its name.

    Raises:
        ArtifactError: A tensor is missing, unknown or of another shape; the message names it.
    """
    missing = expected_shapes(geometry)
    weights: dict[str, Tensor] = {}
    scales = _read_scales(folder)
    for path in _files(folder):
        with safe_open(path, framework="pt") as stream:
            for name in stream.keys():  # noqa: SIM118 - safe_open is not iterable
                if _is_redundant(name, geometry) or _is_scale(name):
                    continue
                tensor = stream.get_tensor(name)
                _check(path, name, tuple(tensor.shape), missing.pop(name, None))
                weights[name] = _numbers(path, name, tensor, scales).to(device=place(name), dtype=dtype)
    if missing:
        raise ArtifactError(
            f"Target folder {folder} lacks {len(missing)} tensors that its config.json calls for, "
            f"first {min(missing)!r}. Download or save the folder again."
        )
    return weights


def _numbers(path: Path, name: str, tensor: Tensor, scales: Mapping[str, Tensor]) -> Tensor:
    if tensor.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        return tensor
    try:
        return dequantise(tensor, scales[name])
    except (KeyError, ValueError) as error:
        raise ArtifactError(
            f"{path}: tensor {name!r} is in eight bits, and its scale is not usable ({error}). Expected "
            f"{' or '.join(SCALES)} beside it."
        ) from None


def _read_scales(folder: Path) -> dict[str, Tensor]:
    """Scales by the name of their weight; they may lie in another file than it."""
    scales: dict[str, Tensor] = {}
    for path in _files(folder):
        with safe_open(path, framework="pt") as stream:
            for name in stream.keys():  # noqa: SIM118 - safe_open is not iterable
                module, _, kind = name.rpartition(".")
                if kind in SCALES:
                    scales[f"{module}.weight"] = stream.get_tensor(name)
    return scales


def _is_scale(name: str) -> bool:
    return name.rpartition(".")[2] in (*SCALES, *IGNORED)


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return sorted(folder.glob("*.safetensors"))


def _is_redundant(name: str, geometry: TargetGeometry) -> bool:
    """True for what old checkpoints store although it follows from the rest."""
    return name.endswith("rotary_emb.inv_freq") or (name == LM_HEAD and geometry.tie_word_embeddings)


def _check(path: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    if expected is None:
        raise ArtifactError(
            f"{path} holds {name!r}, which a decoder of its config.json does not have or has twice. "
            "It would be left out; choose a target of plain Llama, Mistral, Qwen2 or Qwen3 layers."
        )
    if shape != expected:
        raise ArtifactError(
            f"{path}: tensor {name!r} has shape {shape}; its config.json calls for {expected}."
        )
