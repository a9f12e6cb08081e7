"""EAGLE-3 as SpecForge and SafeAILab's trainer write it, which SGLang and vLLM load."""

from collections.abc import Mapping
from typing import Any

import torch

from eagleray.drafters.imports.naming import (
    Naming,
    PublicCheckpoint,
    Translation,
    layer_shape,
    rename,
    without_embedding,
)

RULES = (
    (r"model\.", ""),
    (r"layers\.0\.", "midlayer."),
    (r"aux_norm_low\.", "fc_norm.0."),
    (r"aux_norm_mid\.", "fc_norm.1."),
    (r"aux_norm_high\.", "fc_norm.2."),
)


def knows(config: Mapping[str, Any]) -> bool:
    """By the name of the architecture."""
    architectures = config.get("architectures") or []
    return "speculators_model_type" not in config and any("Eagle3" in name for name in architectures)


def translate(source: PublicCheckpoint) -> Translation:
    """Ids in `eagle_config` are outputs of layers; without them the layers are the usual three."""
    config = source.config
    source.require("num_hidden_layers", config.get("num_hidden_layers"), 1)
    if config.get("norm_output"):
        raise source.refuse("norm_output is true, which SpecForge and the engines read differently")
    ids = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    entered = config.get("eagle_aux_hidden_state_layer_ids")
    if ids and entered and [layer + 1 for layer in ids] != list(entered):
        raise source.refuse(
            f"eagle_config names the layers {ids} by their outputs, which at top level must be "
            f"{[layer + 1 for layer in ids]}, one higher; they are {entered}"
        )
    return translate_tensors(source, config, ids or [layer - 1 for layer in entered or ()])


def translate_tensors(
    source: PublicCheckpoint, config: Mapping[str, Any], layer_ids: list[int], **settings: Any
) -> Translation:
    """What all EAGLE-3 namings share.

    Args:
        config: Of the drafter's layer.
        layer_ids: Layers by their outputs; empty means the usual three.
    """
    tensors = without_embedding(source, rename(rename(source.tensors, RULES[:1]), RULES[1:]))
    size, vocab_size = source.config.get("draft_vocab_size"), source.heads.geometry.vocab_size
    if size in (None, vocab_size) and "d2t" not in tensors:
        tensors["d2t"] = torch.zeros(vocab_size, dtype=torch.int64)
        tensors["t2d"] = torch.ones(vocab_size, dtype=torch.bool)
    elif "d2t" in tensors:
        source.require("draft_vocab_size", size, len(tensors["d2t"]))
    norms = {"fc_norm": "per_layer", "norm_before_fc": "joint"}
    wanted = [norm for key, norm in norms.items() if source.config.get(key)]
    return Translation(
        settings={
            "name": "eagle3",
            **layer_shape(source, config),
            "target_layer_ids": layer_ids or None,
            "draft_vocab_size": size or vocab_size,
            "norm_before_residual": source.config.get("norm_before_residual", False),
            "feature_norm": wanted[0] if wanted else "none",
            **settings,
        },
        tensors=tensors,
    )


NAMING = Naming(name="EAGLE-3 (SpecForge, SafeAILab)", knows=knows, translate=translate)
