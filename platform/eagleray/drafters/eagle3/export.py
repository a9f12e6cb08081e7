"""How an EAGLE-3 folder describes itself to SGLang, to vLLM and to us."""

from typing import TYPE_CHECKING, Any

from eagleray.drafters.blocks.headed import rotary_config

if TYPE_CHECKING:
    from eagleray.drafters.eagle3.model import Eagle3Drafter


def engine_config(drafter: "Eagle3Drafter") -> dict[str, Any]:
    """Content of `config.json`.

    The tapped layers stand there twice: SGLang reads outputs of layers inside `eagle_config`, vLLM the
    layers that those outputs enter, one higher, at top level.
    """
    config, layers = drafter.config, list(drafter.tapped_layers)
    norm_before_fc = {"norm_before_fc": True} if config.feature_norm == "joint" else {}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        **drafter.dimensions.as_config(),
        **rotary_config(drafter.heads),
        "draft_vocab_size": len(drafter.d2t),
        "target_hidden_size": drafter.dimensions.hidden_size,
        "num_aux_hidden_states": len(layers),
        "norm_before_residual": config.norm_before_residual,
        **({"fc_norm": True} if config.feature_norm == "per_layer" else {}),
        **norm_before_fc,
        **({"norm_output": True} if config.norm_output else {}),
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in layers],
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": layers,
            **norm_before_fc,
        },
    }


def profile(drafter: "Eagle3Drafter") -> dict[str, Any]:
    """What a reader must know and `config.json` does not say."""
    return {
        "algorithm": drafter.config.name,
        "settings": drafter.config.model_dump(mode="json"),
        "anchor_convention": "row p joins features of p with the token at p + 1 and drafts from p + 2",
        "slots": "recursive; any depth",
        "trained_slots": drafter.config.ttt_steps,
        "target_layer_ids": list(drafter.tapped_layers),
        "layer_id_convention": "0-based, output of the layer; vLLM's top-level key counts one higher",
        "draft_vocabulary": "target id = draft id + d2t[draft id]; t2d marks the kept target ids",
        "engines": {
            "vllm": "method eagle3",
            "sglang": "not served: it has no norm_before_residual and would run the layer the other way"
            if drafter.config.norm_before_residual
            else "algorithm EAGLE3",
        },
    }
