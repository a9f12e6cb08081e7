"""DFlash as z-lab and SpecForge write it, which SGLang and vLLM load."""

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
    (r"encoder\.fc\.", "fc."),
    (r"encoder\.output_norm_enc\.", "hidden_norm."),
)
LM_HEAD = "lm_head.weight"
KNOWN = {"block_size", "num_target_layers", "mask_token_id", "mask_token", "target_layer_ids", "causal"}
"""Keys of `dflash_config` that are honoured; any other changes what the drafter computes."""


def knows(config: Mapping[str, Any]) -> bool:
    """By the name of the architecture."""
    return "speculators_model_type" not in config and "DFlashDraftModel" in (
        config.get("architectures") or ()
    )


def translate(source: PublicCheckpoint) -> Translation:
    """Keys stand in `dflash_config`, in older checkpoints at top level."""
    config = source.config
    section = config.get("dflash_config") or {}
    if unknown := sorted(set(section) - KNOWN):
        raise source.refuse(f"dflash_config holds {', '.join(unknown)}, which no drafter here has")
    either = {**config, **section}
    for key in ("block_size", "mask_token_id"):
        if either.get(key) is None:
            raise source.refuse(f"{key} is missing, in dflash_config and at top level")
    geometry = source.heads.geometry
    source.require("num_target_layers", either.get("num_target_layers"), geometry.num_layers)
    return translate_tensors(
        source,
        config,
        block_size=either["block_size"],
        mask_token_id=either["mask_token_id"],
        target_layer_ids=either.get("target_layer_ids")
        or usual_layers(geometry.num_layers, config["num_hidden_layers"]),
        is_causal=config.get("is_causal", section.get("causal")),
    )


def translate_tensors(source: PublicCheckpoint, config: Mapping[str, Any], **settings: Any) -> Translation:
    """What all DFlash namings share.

    Args:
        config: Of the drafter's layers.

    Raises:
        ArtifactError: The checkpoint has an lm_head of its own; our drafter proposes with the target's.
    """
    tensors = without_embedding(source, rename(rename(source.tensors, RULES[:1]), RULES[1:]))
    _require_borrowed_head(source, tensors)
    kinds = config.get("layer_types")
    return Translation(
        settings={
            "name": "dflash",
            **layer_shape(source, config),
            "num_layers": config["num_hidden_layers"],
            "layer_types": kinds,
            "sliding_window": config.get("sliding_window") if "sliding_attention" in (kinds or ()) else None,
            "draft_vocab_size": len(tensors["d2t"]) if "d2t" in tensors else None,
            **settings,
        },
        tensors=tensors,
    )


def usual_layers(num_target_layers: int, num_layers: int) -> list[int]:
    """Layers that are fused where a checkpoint names none: from the second to the third last, evenly."""
    if num_layers == 1:
        return [num_target_layers // 2]
    return [round(1 + index * (num_target_layers - 4) / (num_layers - 1)) for index in range(num_layers)]


def _require_borrowed_head(source: PublicCheckpoint, tensors: dict[str, torch.Tensor]) -> None:
    if LM_HEAD not in tensors:
        return
    own = source.heads.lm_head_VD.float().cpu()
    if "d2t" in tensors:
        own = own[tensors["d2t"].long() + torch.arange(len(tensors["d2t"]))]
    found = tensors[LM_HEAD]
    if found.shape != own.shape or not torch.allclose(found, own, atol=1e-2):
        raise source.refuse(
            f"{LM_HEAD} of shape {tuple(found.shape)} is not the target's; DFlash drafters here propose "
            "with the target's own"
        )
    if "d2t" not in tensors:
        del tensors[LM_HEAD]


NAMING = Naming(name="DFlash (z-lab, SpecForge)", knows=knows, translate=translate)
