"""What is planned on paper is what autograd keeps; what does not fit is refused with what to change."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash2.config import DFlash2Config
from eagleray.drafters.eagle.config import EagleConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.mtp.config import MTPConfig
from eagleray.errors import ConfigError
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import FrozenHeads
from eagleray.training.config import TrainingConfig
from eagleray.training.measured import activation_ratio, saved_bytes
from eagleray.training.memory import MemoryPlan, activations, check_memory, plan_memory, target_parameters
from eagleray.training.recompute import recompute_activations

GIB = 2**30


def geometry_of(**sizes: int) -> TargetGeometry:
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 9,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 300,
        "max_position_embeddings": 4096,
    }
    return TargetGeometry.from_config(config | sizes, (2,))


def drafter_and_batch(
    config: DrafterConfig, geometry: TargetGeometry, length: int, recompute: bool
) -> tuple[TrainableDrafter, TrainingBatch]:
    """One sequence, all but its first token supervised."""
    torch.manual_seed(0)
    embedding_VD = torch.randn(geometry.vocab_size, geometry.hidden_size)
    heads = FrozenHeads(geometry=geometry, embed_VD=embedding_VD, lm_head_VD=embedding_VD)
    drafter = build_trainable_drafter(config, heads, torch.ones(geometry.vocab_size, dtype=torch.int64))
    if recompute:
        recompute_activations(drafter)
    taps = len(config.tapped_layers(geometry.num_layers))
    batch = TrainingBatch(
        ids_BT=torch.arange(length)[None] % 90 + 3,
        lengths_B=torch.tensor([length]),
        supervised_BT=(torch.arange(length) > 0)[None],
        features_BTLD=torch.randn(1, length, taps, geometry.hidden_size),
        final_BTD=torch.randn(1, length, geometry.hidden_size),
        seed=0,
    )
    return drafter, batch


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize(
    "sizes",
    [{}, {"hidden_size": 128, "intermediate_size": 320, "vocab_size": 1000}, {"num_key_value_heads": 4}],
    ids=["small", "wide", "ungrouped"],
)
@pytest.mark.parametrize(
    "config",
    [
        Eagle3Config(draft_vocab_size=150, ttt_steps=3),
        EagleConfig(ttt_steps=2),
        MTPConfig(),
        DFlashConfig(num_layers=3, num_anchors=32, block_size=4),
        DFlash2Config(num_layers=2, num_anchors=16, conv_group_size=8, selector_rank=4),
    ],
    ids=lambda config: config.name,
)
def test_activations_on_paper_are_those_that_autograd_keeps(
    config: DrafterConfig, sizes: dict[str, int], recompute: bool
) -> None:
    geometry = geometry_of(**sizes)
    training = TrainingConfig(max_length=200, workers=1, recompute_activations=recompute)
    planned = 4 * activations(config, training, geometry).saved
    measured = saved_bytes(*drafter_and_batch(config, geometry, 200, recompute))
    assert planned == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(
    "config",
    [
        Eagle3Config(draft_vocab_size=150, ttt_steps=3),
        DFlashConfig(num_layers=3, num_anchors=32, block_size=4),
    ],
    ids=lambda config: config.name,
)
def test_a_row_of_many_short_samples_takes_what_is_planned_for_it(config: DrafterConfig) -> None:
    """Each of them has anchors of its own, so there are more than a whole row of one sample has."""
    geometry = geometry_of()
    training = TrainingConfig(max_length=200, workers=1, pack=True)
    drafter, batch = drafter_and_batch(config, geometry, 200, False)
    measured = saved_bytes(drafter, replace(batch, packed=((40,) * 5,)))
    assert measured <= 1.2 * 4 * activations(config, training, geometry).saved
    assert measured > 0.6 * 4 * activations(config, training, geometry).saved


def test_a_step_of_which_little_is_supervised_is_measured_as_if_all_were() -> None:
    config, geometry, training = Eagle3Config(draft_vocab_size=150), geometry_of(), TrainingConfig()
    drafter, batch = drafter_and_batch(config, geometry, 200, False)
    whole = activation_ratio(drafter, batch, config, training, geometry)
    little = replace(batch, supervised_BT=batch.supervised_BT & (torch.arange(200) > 190))
    assert activation_ratio(drafter, little, config, training, geometry) == whole
    assert whole == pytest.approx(1, rel=0.2)
    assert saved_bytes(drafter, little) < saved_bytes(drafter, batch) / 2


def test_what_was_measured_scales_the_activations_of_the_plan() -> None:
    drafter, training = Eagle3Config(draft_vocab_size=150), TrainingConfig(max_length=128)
    paper, held = (plan_memory(drafter, training, geometry_of(), 2, ratio) for ratio in (1.0, 1.5))
    assert held.activations == pytest.approx(1.5 * paper.activations, rel=1e-3)
    assert held.total - held.activations == paper.total - paper.activations


def plan(**settings: Any) -> MemoryPlan:
    training = TrainingConfig(**({"max_length": 128, "workers": 4} | settings))
    return plan_memory(Eagle3Config(draft_vocab_size=150), training, geometry_of(), 2)


def test_sharding_shares_out_what_a_parameter_costs() -> None:
    count = Eagle3Config(draft_vocab_size=150).num_parameters(geometry_of())
    replicated, sharded = plan(backend="ddp"), plan(backend="fsdp")
    assert replicated.moments == 8 * count
    assert sharded.moments == 2 * count
    zero = [plan(backend="deepspeed", optimizer="adamw", zero={"stage": stage}).gradients for stage in (1, 2)]
    assert zero[0] == 4 * count
    offloaded = plan(backend="deepspeed", optimizer="adamw", zero={"stage": 2, "offload": True})
    assert offloaded.moments == 0
    assert replicated.activations == sharded.activations


def test_a_colocated_target_is_counted_and_a_stored_one_is_not() -> None:
    geometry = geometry_of()
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96 + 2 * 64
    assert target_parameters(geometry) == 9 * layer + 64 + 2 * 300 * 64
    assert plan(features="colocated").target == 2 * target_parameters(geometry)
    assert plan(features="stored").target == 2 * 2 * 300 * 64


def big(**settings: Any) -> MemoryPlan:
    parts = {"parameters": 4, "gradients": 4, "moments": 8, "activations": 40, "features": 4, "target": 2}
    return MemoryPlan(**{name: value * GIB for name, value in (parts | settings).items()})


def test_what_fits_passes_and_what_does_not_is_told_part_by_part() -> None:
    training = TrainingConfig(micro_batch_size=4)
    check_memory(big(), 80 * GIB, training, "training")
    with pytest.raises(ConfigError, match=r"needs 62\.00 GiB .*activations 40\.00 GiB.*has 48\.00 GiB"):
        check_memory(big(), 48 * GIB, training, "training")


@pytest.mark.parametrize(
    ("settings", "parts", "advice"),
    [
        ({}, {}, "recompute_activations to true first"),
        ({"recompute_activations": True}, {}, "Set training.micro_batch_size to 2 or less"),
        ({"recompute_activations": True, "micro_batch_size": 1}, {}, "Not even one sequence fits"),
        (
            {"recompute_activations": True, "features": "colocated"},
            {"target": 40},
            "set training.features to streamed",
        ),
    ],
)
def test_the_advice_changes_memory_and_nothing_that_is_learned(
    settings: dict[str, Any], parts: dict[str, int], advice: str
) -> None:
    with pytest.raises(ConfigError, match=advice) as raised:
        check_memory(
            big(**parts), 48 * GIB, TrainingConfig(**({"micro_batch_size": 4} | settings)), "training"
        )
    assert "lower max_length" not in str(raised.value)
