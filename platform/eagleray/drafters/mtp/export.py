"""How an MTP folder describes itself to SGLang, to vLLM and to us.

Of the MTP layers that both engines run, MiMo's fits targets of the Llama and Qwen kind: a dense layer of
the Qwen2 flavour, a final norm, its output fed back.
"""

from typing import TYPE_CHECKING, Any

from eagleray.drafters.blocks.chain.export import final_state_profile
from eagleray.drafters.blocks.headed import rotary_config
from eagleray.drafters.blocks.layers import Dimensions
from eagleray.targets.geometry import TargetGeometry

if TYPE_CHECKING:
    from eagleray.drafters.mtp.model import MTPDrafter


def engine_config(drafter: "MTPDrafter") -> dict[str, Any]:
    """Content of `config.json`."""
    return {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": drafter.heads.geometry.num_layers,
        "num_nextn_predict_layers": 1,
        **drafter.dimensions.as_config(),
        **rotary_config(drafter.heads),
        "attention_bias": True,
        "use_sliding_window": False,
    }


def profile(drafter: "MTPDrafter") -> dict[str, Any]:
    """What a reader must know and `config.json` does not say."""
    vllm = _vllm_needs(drafter.dimensions, drafter.heads.geometry)
    return final_state_profile(drafter, drafter.config, {"vllm": vllm, "sglang": "algorithm EAGLE"})


def _vllm_needs(own: Dimensions, target: TargetGeometry) -> str:
    heads, head_dim = own.num_heads, own.head_dim
    if heads * head_dim != own.hidden_size:
        return (
            f"not served: its MiMo layer has heads of width hidden_size / num_heads = "
            f"{own.hidden_size / heads:g}, this one of {head_dim}"
        )
    shape = (heads, own.num_kv_heads, own.intermediate_size)
    if shape != (target.num_heads, target.num_kv_heads, target.intermediate_size):
        return "not served: it builds the layer in the shape of the target's layers, this one has its own"
    return 'method mtp; the target wants hf-overrides {"num_nextn_predict_layers": 1}'
