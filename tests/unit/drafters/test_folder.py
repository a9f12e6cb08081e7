"""Drafter folders: what engines read, what we read back, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagleray.drafters.base import TrainableDrafter
from eagleray.drafters.catalog import build_drafter, resolve
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.folder import (
    drafter_hash,
    export_drafter,
    extend_profile,
    load_drafter,
    read_profile,
)
from eagleray.errors import ArtifactError, ConfigError
from eagleray.targets.heads import FrozenHeads

SETTINGS = {
    "eagle3": Eagle3Config(draft_vocab_size=24),
    "dflash": DFlashConfig(block_size=4),
    "dflash, reduced vocabulary": DFlashConfig(block_size=4, draft_vocab_size=24),
}


@pytest.fixture
def eagle3_folder(heads: FrozenHeads, counts: Tensor, tmp_path: Path) -> Path:
    built = build_drafter(SETTINGS["eagle3"], heads, counts)
    assert isinstance(built, TrainableDrafter)
    export_drafter(built, tmp_path / "drafter", {})
    return tmp_path / "drafter"


def test_eagle3_names_its_layers_in_the_spelling_of_each_engine(eagle3_folder: Path) -> None:
    config = json.loads((eagle3_folder / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["head_dim"] == 8
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100000.0


def test_eagle3_tensors_have_the_shapes_that_engines_load(eagle3_folder: Path) -> None:
    shapes = {
        name: tuple(tensor.shape) for name, tensor in load_file(eagle3_folder / "model.safetensors").items()
    }
    assert shapes == {
        "d2t": (24,),
        "t2d": (40,),
        "fc.weight": (16, 48),
        "lm_head.weight": (24, 16),
        "norm.weight": (16,),
        "midlayer.input_layernorm.weight": (16,),
        "midlayer.hidden_norm.weight": (16,),
        "midlayer.post_attention_layernorm.weight": (16,),
        "midlayer.self_attn.q_proj.weight": (32, 32),
        "midlayer.self_attn.k_proj.weight": (16, 32),
        "midlayer.self_attn.v_proj.weight": (16, 32),
        "midlayer.self_attn.o_proj.weight": (16, 32),
        "midlayer.mlp.gate_proj.weight": (24, 16),
        "midlayer.mlp.up_proj.weight": (24, 16),
        "midlayer.mlp.down_proj.weight": (16, 24),
    }


@pytest.mark.parametrize(
    ("settings", "keys", "tensors"),
    [
        ({}, {}, {}),
        (
            {"feature_norm": "per_layer"},
            {"fc_norm": True},
            {f"fc_norm.{layer}.weight": (16,) for layer in range(3)},
        ),
        ({"feature_norm": "joint"}, {"norm_before_fc": True}, {"input_norm.weight": (48,)}),
        ({"norm_output": True}, {"norm_output": True}, {}),
    ],
)
def test_each_norm_of_eagle3_has_its_key_and_tensors(
    heads: FrozenHeads, settings: dict[str, Any], keys: dict[str, bool], tensors: dict[str, tuple[int, ...]]
) -> None:
    built = build_drafter(Eagle3Config(draft_vocab_size=40, **settings), heads)
    assert isinstance(built, TrainableDrafter)
    content = built.export_config()
    names = ("fc_norm", "norm_before_fc", "norm_output")
    assert {name: content[name] for name in names if name in content} == keys
    assert content["eagle_config"].get("norm_before_fc") == content.get("norm_before_fc")
    exported = {name: tuple(tensor.shape) for name, tensor in built.export_tensors().items()}
    assert {
        name: shape for name, shape in exported.items() if "fc_norm" in name or "input_norm" in name
    } == tensors


def test_dflash_ships_a_head_only_with_a_reduced_vocabulary(heads: FrozenHeads, counts: Tensor) -> None:
    full = build_drafter(SETTINGS["dflash"], heads, counts)
    reduced = build_drafter(SETTINGS["dflash, reduced vocabulary"], heads, counts)
    assert isinstance(full, TrainableDrafter)
    assert isinstance(reduced, TrainableDrafter)
    assert full.export_config()["draft_vocab_size"] is None
    assert reduced.export_config()["draft_vocab_size"] == 24
    extra = {name: tuple(tensor.shape) for name, tensor in reduced.export_tensors().items()}
    for name in full.export_tensors():
        del extra[name]
    assert extra == {"d2t": (24,), "t2d": (40,), "lm_head.weight": (24, 16)}
    config = full.export_config()
    assert config["dflash_config"] == {
        "block_size": 4,
        "num_target_layers": 8,
        "mask_token_id": 0,
        "target_layer_ids": [1, 3, 4],
    }


def drop_weight(tensors: dict[str, Tensor]) -> None:
    del tensors["norm.weight"]


def rename_weight(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"] = tensors.pop("norm.weight")


def reshape_weight(tensors: dict[str, Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"][:, :32].contiguous()


def zero_map(tensors: dict[str, Tensor]) -> None:
    tensors["d2t"] = torch.zeros_like(tensors["d2t"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_weight, r"Missing: \['norm.weight'\]"),
        (rename_weight, r"Unknown: \['model.norm.weight'\]"),
        (reshape_weight, r"fc.weight has shape \(16, 32\); expected \(16, 48\)"),
        (zero_map, "d2t and t2d disagree"),
    ],
)
def test_a_damaged_folder_is_refused_by_the_name_of_the_tensor(
    eagle3_folder: Path, heads: FrozenHeads, damage: Callable[[dict[str, Tensor]], Any], message: str
) -> None:
    tensors = load_file(eagle3_folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, eagle3_folder / "model.safetensors")
    with pytest.raises(ArtifactError, match=message):
        load_drafter(eagle3_folder, heads)


@pytest.mark.parametrize("name", ["model.safetensors", "speculation_profile.json"])
def test_a_folder_that_lacks_a_file_is_refused(eagle3_folder: Path, heads: FrozenHeads, name: str) -> None:
    (eagle3_folder / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        load_drafter(eagle3_folder, heads)


def test_a_profile_that_learns_more_keeps_the_folder_and_its_hash(
    eagle3_folder: Path, heads: FrozenHeads
) -> None:
    before, known = drafter_hash(eagle3_folder), read_profile(eagle3_folder)
    extend_profile(eagle3_folder, {"measured": {"tau": 2.5}})
    assert read_profile(eagle3_folder) == {**known, "measured": {"tau": 2.5}}
    assert drafter_hash(eagle3_folder) == before
    load_drafter(eagle3_folder, heads)


def test_an_unknown_drafter_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"known drafters: eagle, .*, prompt_lookup"):
        resolve("eagle4")


def test_a_reduced_vocabulary_needs_counts(heads: FrozenHeads) -> None:
    with pytest.raises(ConfigError, match="no supervised tokens were counted"):
        build_drafter(Eagle3Config(draft_vocab_size=24), heads)
    assert build_drafter(Eagle3Config(draft_vocab_size=40), heads).tapped_layers == (1, 3, 4)
