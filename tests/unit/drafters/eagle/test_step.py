"""What EAGLE regresses, through which noise, and how its folder is named."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.chain.unroll import unroll
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.query_rows import QueryRows
from eagleray.drafters.eagle.config import EagleConfig
from eagleray.drafters.eagle.model import EagleDrafter
from eagleray.drafters.eagle.step import with_noise
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]


@pytest.mark.parametrize(("regression", "classification"), [(1.0, 0.0), (0.0, 1.0), (0.5, 0.2)])
def test_the_loss_is_the_distance_to_the_next_feature_and_the_cross_entropy_through_the_head(
    heads: FrozenHeads, make_batch: MakeBatch, regression: float, classification: float
) -> None:
    torch.manual_seed(3)
    config = EagleConfig(
        ttt_steps=2,
        step_loss_decay=0.5,
        feature_noise=0.0,
        regression_weight=regression,
        classification_weight=classification,
    )
    drafter = EagleDrafter(config, heads, None)
    batch = make_batch((3, 9))
    rows = QueryRows.select(batch, 2)
    expected, weight = 0.0, 0.0
    with torch.no_grad():
        for step, (logits_NU, guess_ND) in enumerate(unroll(drafter, batch, rows, 2)):
            for n, position in enumerate(rows.position_N.tolist()):
                if position + 2 + step in range(3, 9):
                    # Row p guesses the feature of p + 1, which predicts the token at p + 2.
                    feature_D = batch.final_BTD[0, position + 1 + step]
                    distance = F.smooth_l1_loss(guess_ND[n], feature_D)
                    target = (heads.lm_head_VD @ feature_D).softmax(-1)
                    entropy = -(target * logits_NU[n].log_softmax(-1)).sum()
                    expected += 0.5**step * float(regression * distance + classification * entropy)
                    weight += 0.5**step
        terms = drafter(batch)
    assert terms.loss_sum.item() == pytest.approx(expected, rel=1e-4)
    assert float(terms.weight_sum) == pytest.approx(weight)


def test_a_layer_that_guesses_the_feature_exactly_has_no_distance_left(
    heads: FrozenHeads, make_batch: MakeBatch
) -> None:
    """With features that equal the embedding of the token after them, copying the token is right."""
    drafter = EagleDrafter(EagleConfig(classification_weight=0.0, feature_noise=0.0), heads, None)
    for parameter in drafter.parameters():
        parameter.data.zero_()
    drafter.fc.weight.data[:, :16] = torch.eye(16)
    batch = make_batch((3, 9))
    # Row p gets the token at p + 1; its guess is compared with the feature of p + 1.
    batch.final_BTD[:] = heads.embed_VD[batch.ids_BT]
    assert drafter(batch).loss_sum.item() == pytest.approx(0.0, abs=1e-6)


def test_noise_is_uniform_as_wide_as_asked_and_of_each_row_alone(make_batch: MakeBatch) -> None:
    batch = make_batch((3, 60), (3, 30), seed=4)
    noise_BTD = with_noise(batch, 0.2) - batch.final_BTD
    for row, length in enumerate([60, 30]):
        real_TD = noise_BTD[row, :length]
        half_width = 0.1 * 512 / length
        assert real_TD.abs().max() <= half_width * 1.001
        assert real_TD.std().item() == pytest.approx(half_width / 3**0.5, rel=0.05)
        assert abs(real_TD.mean().item()) < 0.1 * half_width
    assert not noise_BTD[1, 30:].any()
    alone = TrainingBatch(
        ids_BT=batch.ids_BT[1:, :30],
        lengths_B=batch.lengths_B[1:],
        supervised_BT=batch.supervised_BT[1:, :30],
        features_BTLD=batch.features_BTLD[1:, :30],
        final_BTD=batch.final_BTD[1:, :30],
        seed=4,
    )
    assert torch.equal(with_noise(alone, 0.2)[0], with_noise(batch, 0.2)[1, :30])
    assert not torch.equal(with_noise(replace(batch, seed=5), 0.2), with_noise(batch, 0.2))


def test_noise_enters_what_the_layer_reads_and_not_what_it_is_compared_with(
    heads: FrozenHeads, make_batch: MakeBatch
) -> None:
    """A layer that ignores its feature has the same loss with and without noise."""
    drafter = EagleDrafter(EagleConfig(feature_noise=50.0), heads, None)
    batch = make_batch((3, 9))
    quiet = EagleDrafter(EagleConfig(feature_noise=0.0), heads, None)
    quiet.load_state_dict(drafter.state_dict())
    assert drafter(batch).loss_sum != quiet(batch).loss_sum
    for each in (drafter, quiet):
        each.fc.weight.data[:, 16:] = 0.0
    assert torch.equal(drafter(batch).loss_sum, quiet(batch).loss_sum)


@pytest.mark.parametrize(
    ("bias", "reduced", "name"),
    [
        (False, False, "EagleLlamaForCausalLM"),
        (True, False, "LlamaForCausalLMEagle"),
        (False, True, "EagleLlamaForCausalLMReducedVocabulary"),
    ],
)
def test_its_folder_is_named_for_the_one_engine_that_runs_it(
    heads: FrozenHeads, bias: bool, reduced: bool, name: str
) -> None:
    vocabulary = DraftVocabulary.from_counts(torch.ones(40), 24) if reduced else None
    drafter = EagleDrafter(EagleConfig(fc_bias=bias), heads, vocabulary)
    content = drafter.export_config()
    assert content["architectures"] == [name]
    assert content["num_hidden_layers"] == 1
    assert not content["bias"]
    served = {engine for engine, need in drafter.export_profile()["engines"].items() if "not" not in need}
    assert served == (set() if reduced else {"sglang"} if bias else {"vllm"})
    shapes = {name: tuple(tensor.shape) for name, tensor in drafter.export_tensors().items()}
    assert shapes == {
        "fc.weight": (16, 32),
        "layers.0.post_attention_layernorm.weight": (16,),
        "layers.0.self_attn.q_proj.weight": (32, 16),
        "layers.0.self_attn.k_proj.weight": (16, 16),
        "layers.0.self_attn.v_proj.weight": (16, 16),
        "layers.0.self_attn.o_proj.weight": (16, 32),
        "layers.0.mlp.gate_proj.weight": (24, 16),
        "layers.0.mlp.up_proj.weight": (24, 16),
        "layers.0.mlp.down_proj.weight": (16, 24),
        **({"fc.bias": (16,)} if bias else {}),
        **({"d2t": (24,), "t2d": (40,)} if reduced else {}),
    }
