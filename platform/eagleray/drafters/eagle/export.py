"""How an EAGLE folder describes itself to SGLang or vLLM and to us."""

from typing import TYPE_CHECKING, Any

from eagleray.drafters.blocks.headed import rotary_config

if TYPE_CHECKING:
    from eagleray.drafters.eagle.model import EagleDrafter


def engine_config(drafter: "EagleDrafter") -> dict[str, Any]:
    """Content of `config.json`.

    Each engine has its own name for the network. The other one, and either with a reduced vocabulary, would
    run something else without an error, so it gets a name that it does not know. A key `bias` that is true
    would give the layer's attention biases in both engines.
    """
    engine_name = "LlamaForCausalLMEagle" if drafter.config.fc_bias else "EagleLlamaForCausalLM"
    reduced = "ReducedVocabulary" if drafter.has_vocabulary else ""
    return {
        "architectures": [engine_name + reduced],
        "model_type": "llama",
        "num_hidden_layers": 1,
        **drafter.dimensions.as_config(),
        **rotary_config(drafter.heads),
        "bias": False,
    }


def profile(drafter: "EagleDrafter") -> dict[str, Any]:
    """What a reader must know and `config.json` does not say."""
    reduced = "target id = draft id + d2t[draft id]; t2d marks the kept target ids; read by no engine"
    return {
        "algorithm": drafter.config.name,
        "settings": drafter.config.model_dump(mode="json"),
        "anchor_convention": "row p joins the final state of p with the token at p + 1 and drafts from p + 2",
        "slots": "recursive; any depth",
        "trained_slots": drafter.config.ttt_steps,
        "target_layer_ids": [],
        "layer_id_convention": "no layer is tapped; it reads the last hidden state after the final norm",
        "draft_vocabulary": reduced if drafter.has_vocabulary else "the target's",
        "engines": engine_needs(drafter),
    }


def engine_needs(drafter: "EagleDrafter") -> dict[str, str]:
    """What each engine has to be told, or why it cannot serve this drafter."""
    if drafter.has_vocabulary:
        why = "not served: it would draft over the target's whole vocabulary"
        return {"vllm": why, "sglang": why}
    if drafter.config.fc_bias:
        return {"vllm": "not served: its fc has no bias", "sglang": "algorithm EAGLE"}
    return {"vllm": "method eagle", "sglang": "not served: its fc has a bias, which would stay random"}
