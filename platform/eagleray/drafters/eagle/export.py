"""How an EAGLE folder describes itself to SGLang or vLLM and to us."""

from typing import TYPE_CHECKING, Any

from eagleray.drafters.blocks.chain.export import final_state_profile
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
    """What a reader must know and `config.json` does not say: each engine runs the network one way only."""
    if drafter.config.fc_bias:
        engines = {"vllm": "not served: its fc has no bias", "sglang": "algorithm EAGLE"}
    else:
        why = "not served: its fc has a bias, which would stay random"
        engines = {"vllm": "method eagle", "sglang": why}
    return final_state_profile(drafter, drafter.config, engines)
