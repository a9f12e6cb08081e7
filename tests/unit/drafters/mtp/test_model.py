"""What the MTP layer joins and feeds back, and how engines are told of it."""

from dataclasses import replace

import pytest
import torch

from eagleray.drafters.mtp.config import MTPConfig
from eagleray.drafters.mtp.model import MTPDrafter
from eagleray.targets.heads import FrozenHeads


@pytest.fixture
def drafter(heads: FrozenHeads) -> MTPDrafter:
    torch.manual_seed(3)
    return MTPDrafter(MTPConfig(), heads, None)


def test_the_state_comes_before_the_token_each_normed_by_its_own_norm(drafter: MTPDrafter) -> None:
    layer = drafter.layer
    with torch.no_grad():
        layer.token_layernorm.weight.fill_(3.0)
        layer.hidden_layernorm.weight.fill_(5.0)
        layer.input_proj.weight.zero_()
        layer.input_proj.weight[0, 0] = 1.0
        layer.input_proj.weight[1, 16] = 1.0
        residual_ND, source_ND = layer.enter(torch.full((1, 16), 7.0), torch.full((1, 16), 9.0))
    expected = torch.zeros(1, 16)
    expected[0, :2] = torch.tensor([5.0, 3.0])
    torch.testing.assert_close(residual_ND, expected)
    torch.testing.assert_close(source_ND, expected / (34 / 16) ** 0.5)


def test_the_token_of_row_0_is_left_out_as_engines_do(drafter: MTPDrafter) -> None:
    hidden_ND = torch.randn(2, 16)
    first, other = (
        drafter.enter(torch.tensor([token, token]), hidden_ND, torch.tensor([0, 1]))[0] for token in (4, 9)
    )
    assert torch.equal(first[0], other[0])
    assert not torch.equal(first[1], other[1])


def test_the_target_s_head_scores_the_normed_state_which_is_fed_back(
    drafter: MTPDrafter, heads: FrozenHeads
) -> None:
    hidden_ND = torch.randn(2, 16)
    logits_NU, state_ND = drafter.predict(hidden_ND)
    torch.testing.assert_close(state_ND, torch.nn.functional.rms_norm(hidden_ND, (16,), eps=1e-5) / 2)
    torch.testing.assert_close(logits_NU, state_ND @ heads.lm_head_VD.T)


def test_tensors_have_mimo_s_names(drafter: MTPDrafter) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in drafter.export_tensors().items()}
    layer = {
        "token_layernorm.weight": (16,),
        "hidden_layernorm.weight": (16,),
        "input_proj.weight": (16, 32),
        "input_layernorm.weight": (16,),
        "self_attn.q_proj.weight": (32, 16),
        "self_attn.q_proj.bias": (32,),
        "self_attn.k_proj.weight": (16, 16),
        "self_attn.k_proj.bias": (16,),
        "self_attn.v_proj.weight": (16, 16),
        "self_attn.v_proj.bias": (16,),
        "self_attn.o_proj.weight": (16, 32),
        "post_attention_layernorm.weight": (16,),
        "mlp.gate_proj.weight": (24, 16),
        "mlp.up_proj.weight": (24, 16),
        "mlp.down_proj.weight": (16, 24),
        "final_layernorm.weight": (16,),
    }
    assert shapes == {f"model.mtp_layers.0.{name}": shape for name, shape in layer.items()}
    config = drafter.export_config()
    assert config["architectures"] == ["MiMoForCausalLM"]
    assert config["num_nextn_predict_layers"] == 1


@pytest.mark.parametrize(
    ("settings", "head_dim", "needs"),
    [
        ({}, 4, "method mtp"),
        ({}, 8, "heads of width hidden_size / num_heads = 4, this one of 8"),
        ({"num_heads": 2, "head_dim": 8}, 8, "it builds the layer in the shape of the target's"),
        ({"intermediate_size": 32}, 4, "it builds the layer in the shape of the target's"),
    ],
)
def test_the_profile_says_what_vllm_needs_or_why_it_cannot(
    heads: FrozenHeads, settings: dict[str, int], head_dim: int, needs: str
) -> None:
    heads = replace(heads, geometry=replace(heads.geometry, head_dim=head_dim))
    profile = MTPDrafter(MTPConfig(**settings), heads, None).export_profile()
    assert needs in profile["engines"]["vllm"]
