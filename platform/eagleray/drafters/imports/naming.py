"""What the translation of a public checkpoint into one of our drafters consists of.

A naming says which folders it knows, and turns such a folder's configuration into settings of one of our
drafters and its tensors into ours. Whatever it cannot honour it refuses by name: a key that is passed over
is a drafter that computes something else.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagleray.errors import ArtifactError
from eagleray.targets.heads import FrozenHeads

EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, kw_only=True)
class PublicCheckpoint:
    """A folder that somebody else's trainer wrote, and the target it is for."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    """Floating point ones are float32."""
    heads: FrozenHeads

    def refuse(self, what: str) -> ArtifactError:
        """An error that names the folder."""
        return ArtifactError(f"Drafter {self.folder} cannot be imported: {what}.")

    def require(self, key: str, seen: Any, expected: Any) -> None:
        """Check a key whose value the drafter takes from the target or cannot vary.

        Raises:
            ArtifactError: It is given and is another value.
        """
        if seen is not None and seen != expected:
            raise self.refuse(f"{key} is {seen!r}; expected {expected!r}")


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A public checkpoint in our words."""

    settings: dict[str, Any]
    """Of the drafter, its `name` included."""
    tensors: dict[str, Tensor]
    """Under the names that our export of this drafter has."""


@dataclass(frozen=True, kw_only=True)
class Naming:
    """One way to write drafters down."""

    name: str
    knows: Callable[[Mapping[str, Any]], bool]
    """Whether a `config.json` is of this naming."""
    translate: Callable[[PublicCheckpoint], Translation]


def rename(tensors: Mapping[str, Tensor], rules: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Apply the first rule (regular expression, replacement) that matches the start of each name."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        rule = next((rule for rule in rules if re.match(rule[0], name)), None)
        renamed[name if rule is None else re.sub(*rule, name, count=1)] = tensor
    return renamed


def without_embedding(source: PublicCheckpoint, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop a copy of the target's embedding, which our drafters borrow.

    Raises:
        ArtifactError: It is not the target's.
    """
    rest = dict(tensors)
    embedding = rest.pop(EMBEDDING, None)
    own = source.heads.embed_VD
    if embedding is not None and (
        embedding.shape != own.shape or not torch.allclose(embedding, own.float().cpu(), atol=1e-2)
    ):
        raise source.refuse(
            f"{EMBEDDING} of shape {tuple(embedding.shape)} is not the embedding of the target, of shape "
            f"{tuple(own.shape)}; drafters here borrow the target's"
        )
    return rest


def layer_shape(source: PublicCheckpoint, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a drafter's layers from a Hugging Face configuration.

    Raises:
        ArtifactError: Width, norms or rotary positions are not the target's, which our drafters take over.
    """
    geometry = source.heads.geometry
    rope = config.get("rope_parameters") or {}
    scaling = {**(config.get("rope_scaling") or rope)}
    scaling.pop("rope_theta", None)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    source.require("hidden_size", config.get("hidden_size"), geometry.hidden_size)
    source.require("target_hidden_size", source.config.get("target_hidden_size"), geometry.hidden_size)
    source.require("vocab_size", config.get("vocab_size"), geometry.vocab_size)
    source.require("rms_norm_eps", config.get("rms_norm_eps"), geometry.rms_norm_eps)
    source.require("hidden_act", config.get("hidden_act"), "silu")
    source.require("attention_bias", config.get("attention_bias"), False)
    source.require("rope_theta", rope.get("rope_theta", config.get("rope_theta")), geometry.rope_theta)
    source.require("rope_scaling", None if kind == "default" else scaling, geometry.rope_scaling)
    return {
        "intermediate_size": config.get("intermediate_size"),
        "num_heads": config.get("num_attention_heads"),
        "num_kv_heads": config.get("num_key_value_heads") or config.get("num_attention_heads"),
        "head_dim": config.get("head_dim") or _head_dim(config),
    }


def _head_dim(config: Mapping[str, Any]) -> int | None:
    heads = config.get("num_attention_heads")
    return config["hidden_size"] // heads if heads and "hidden_size" in config else None
