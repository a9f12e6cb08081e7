"""EAGLE and EAGLE-2 as SafeAILab writes them, and as SGLang and vLLM name the same network."""

from collections.abc import Mapping
from typing import Any

from eagleray.drafters.imports.naming import (
    Naming,
    PublicCheckpoint,
    Translation,
    layer_shape,
    rename,
    without_embedding,
)

ARCHITECTURES = {"LlamaForCausalLMEagle", "EagleLlamaForCausalLM", "EagleLlamaModel"}


def knows(config: Mapping[str, Any]) -> bool:
    """By an engine's name, or as the authors write it: a Llama of a single layer."""
    architectures = set(config.get("architectures") or [])
    is_lone_layer = "LlamaForCausalLM" in architectures and config.get("num_hidden_layers") == 1
    return "speculators_model_type" not in config and (
        is_lone_layer or not architectures.isdisjoint(ARCHITECTURES)
    )


def translate(source: PublicCheckpoint) -> Translation:
    """The weights, not the key `bias`, say whether `fc` has one: engines read the key as something else."""
    config = source.config
    source.require("num_hidden_layers", config.get("num_hidden_layers"), 1)
    tensors = without_embedding(source, rename(source.tensors, ((r"model\.", ""),)))
    return Translation(
        settings={"name": "eagle", **layer_shape(source, config), "fc_bias": "fc.bias" in tensors},
        tensors=tensors,
    )


NAMING = Naming(name="EAGLE (SafeAILab)", knows=knows, translate=translate)
