"""How a masked-block drafter's folder describes itself to SGLang, to vLLM and to us."""

from typing import TYPE_CHECKING, Any

from eagleray.drafters.blocks.headed import rotary_config

if TYPE_CHECKING:
    from eagleray.drafters.blocks.masked_block.drafter import MaskedBlockDrafter

LM_HEAD = "lm_head.weight"


def engine_config(drafter: "MaskedBlockDrafter") -> dict[str, Any]:
    """Content of `config.json`. Keys that one engine reads inside `dflash_config` and the other at top
    level stand in both places.
    """
    config, num_layers = drafter.config, drafter.config.num_layers
    shared = {"block_size": config.block_size, "num_target_layers": drafter.heads.geometry.num_layers}
    layer_types = config.layer_types or ("full_attention",) * num_layers
    return {
        "architectures": [drafter.architecture],
        "model_type": "qwen3",
        "num_hidden_layers": num_layers,
        **drafter.dimensions.as_config(),
        **rotary_config(drafter.heads),
        **shared,
        "draft_vocab_size": len(drafter.d2t) if drafter.has_vocabulary else None,
        "layer_types": list(layer_types),
        "use_sliding_window": "sliding_attention" in layer_types,
        "sliding_window": config.sliding_window,
        "max_window_layers": num_layers,
        **({} if config.is_causal is None else {"is_causal": config.is_causal}),
        "dflash_config": {
            **shared,
            "mask_token_id": drafter.mask_token_id,
            "target_layer_ids": list(drafter.tapped_layers),
        },
    }


def profile(drafter: "MaskedBlockDrafter") -> dict[str, Any]:
    """What a reader must know and `config.json` does not say."""
    reduced = "target id = draft id + d2t[draft id]; t2d marks the kept target ids"
    return {
        "algorithm": drafter.config.name,
        "settings": drafter.config.model_dump(mode="json"),
        "anchor_convention": "slot 0 is the newest committed token; slot k predicts the token k after it",
        "slots": drafter.config.block_size - 1,
        "trained_slots": drafter.config.block_size - 1,
        "target_layer_ids": list(drafter.tapped_layers),
        "layer_id_convention": "0-based, output of the layer",
        "draft_vocabulary": reduced if drafter.has_vocabulary else "the target's",
        "engines": drafter.engine_needs(),
    }
