"""EAGLE-3 and DFlash as speculators writes them: the layers' shape lies in a section of its own, and layers
are named by the ones that their outputs enter, one higher than the outputs.
"""

from collections.abc import Mapping
from typing import Any

from eagleray.drafters.imports import dflash, eagle3
from eagleray.drafters.imports.naming import Naming, PublicCheckpoint, Translation


def knows(config: Mapping[str, Any]) -> bool:
    """By the key that only this format has."""
    return config.get("speculators_model_type") in ("eagle3", "dflash")


def translate(source: PublicCheckpoint) -> Translation:
    """Defaults are the format's: `norm_before_residual` is true where it is not given."""
    config = source.config
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise source.refuse("transformer_layer_config is missing; it holds the shape of the layers")
    if config["speculators_model_type"] == "eagle3":
        source.require("num_hidden_layers", layer.get("num_hidden_layers"), 1)
        entered = config.get("eagle_aux_hidden_state_layer_ids") or ()
        return eagle3.translate_tensors(
            source,
            layer,
            [number - 1 for number in entered],
            norm_before_residual=config.get("norm_before_residual", True),
            norm_output=config.get("norm_output", False),
        )
    for key in ("aux_hidden_state_layer_ids", "mask_token_id", "block_size"):
        if config.get(key) is None:
            raise source.refuse(f"{key} is missing")
    source.require("sample_from_anchor", config.get("sample_from_anchor"), False)
    return dflash.translate_tensors(
        source,
        layer,
        block_size=config["block_size"],
        mask_token_id=config["mask_token_id"],
        target_layer_ids=[number - 1 for number in config["aux_hidden_state_layer_ids"]],
        is_causal=not config.get("sliding_window_non_causal", True),
    )


NAMING = Naming(name="speculators", knows=knows, translate=translate)
