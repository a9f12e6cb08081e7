"""Exported folders against the rules in SGLang's source: every tensor has a place, every key a reader."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from eagleray.drafters.base import TrainableDrafter
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash2.config import DFlash2Config
from eagleray.drafters.eagle.config import EagleConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.mtp.config import MTPConfig
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import FrozenHeads

ROOT = Path(__file__).parents[2]
EAGLE = ("models/llama_eagle.py", "models/llama.py")
EAGLE3 = ("models/llama_eagle3.py", "models/llama.py")
DFLASH = ("models/dflash.py", "speculative/dflash_utils.py")
MTP = ("models/mimo_mtp.py", "models/qwen2.py")
CAPTURE = "model_executor/model_runner_components/spec_aux_hidden_state.py"

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def sglang() -> ModuleType:
    """The reader of SGLang's source, beside this file."""
    spec = importlib.util.spec_from_file_location("sglang_source", Path(__file__).parent / "sglang_source.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(sglang: ModuleType) -> Path:
    path: Path = sglang.download(ROOT / ".cache" / "wheels")
    return path


def drafter(config: Any) -> TrainableDrafter:
    geometry = TargetGeometry.from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": 8,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 2,
            "vocab_size": 40,
            "max_position_embeddings": 64,
        },
        (2,),
    )
    embedding = torch.zeros(40, 16)
    heads = FrozenHeads(geometry=geometry, embed_VD=embedding, lm_head_VD=embedding)
    return build_trainable_drafter(config, heads, torch.arange(40))


def places(name: str, renames: dict[str, str]) -> list[str]:
    """The attributes that lead to a tensor, as the loader spells it."""
    renamed = (renames.get(part, part) for part in name.split(".")[:-1])
    return [part for new in renamed for part in new.split(".") if not part.isdigit()]


EAGLE3_SETTINGS = {
    "plain": Eagle3Config(draft_vocab_size=24, norm_before_residual=False),
    "a norm for each layer": Eagle3Config(
        draft_vocab_size=24, norm_before_residual=False, feature_norm="per_layer", norm_output=True
    ),
    "a joint norm": Eagle3Config(draft_vocab_size=24, norm_before_residual=False, feature_norm="joint"),
}


@pytest.mark.parametrize("settings", EAGLE3_SETTINGS)
def test_every_eagle3_tensor_has_a_place(sglang: ModuleType, wheel: Path, settings: str) -> None:
    source = sglang.Source(wheel, *EAGLE3)
    names, renames = source.module_names(), source.loader_renames()
    assert renames["midlayer"] == "layers.0"
    for name in drafter(EAGLE3_SETTINGS[settings]).export_tensors():
        if name in ("d2t", "t2d"):
            assert name in source.texts()
        else:
            assert set(places(name, renames)) <= names, name


@pytest.mark.parametrize("settings", EAGLE3_SETTINGS)
def test_every_eagle3_key_that_changes_the_computation_is_read(
    sglang: ModuleType, wheel: Path, settings: str
) -> None:
    config = drafter(EAGLE3_SETTINGS[settings]).export_config()
    read = sglang.Source(wheel, *EAGLE3, CAPTURE).texts()
    computing = {"draft_vocab_size", "num_aux_hidden_states", "target_hidden_size", "eagle_config"}
    computing |= {key for key in ("fc_norm", "norm_before_fc", "norm_output") if key in config}
    assert computing <= set(config)
    assert computing <= read
    assert set(config["eagle_config"]) <= read
    assert config["norm_before_residual"] is False


def test_a_norm_before_the_residual_is_for_vllm_only(sglang: ModuleType, wheel: Path) -> None:
    """SGLang has no reader for the key and would run the layer the other way; the profile says so."""
    assert "norm_before_residual" not in sglang.Source(wheel, *EAGLE3).texts()
    with_norm, without = (
        drafter(Eagle3Config(draft_vocab_size=24, norm_before_residual=before)).export_profile()
        for before in (True, False)
    )
    assert "not served" in with_norm["engines"]["sglang"]
    assert "not served" not in without["engines"]["sglang"]


def test_every_dflash_tensor_has_a_place_and_every_key_a_reader(sglang: ModuleType, wheel: Path) -> None:
    source = sglang.Source(wheel, *DFLASH)
    made = drafter(
        DFlashConfig(block_size=4, layer_types=("full_attention", "sliding_attention"), sliding_window=8)
    )
    names, renames, read = source.module_names(), source.loader_renames(), source.texts()
    for name in made.export_tensors():
        assert set(places(name, renames)) <= names, name
    config = made.export_config()
    assert set(config["dflash_config"]) <= read
    assert {"block_size", "num_target_layers", "is_causal", "layer_types", "sliding_window"} <= set(
        config
    ) & read


def test_a_reduced_dflash_vocabulary_is_for_vllm_only(sglang: ModuleType, wheel: Path) -> None:
    """SGLang would skip the map and the reduced head, and draft over the target's."""
    assert "d2t" not in sglang.Source(wheel, *DFLASH).texts()
    reduced = drafter(DFlashConfig(block_size=4, draft_vocab_size=24)).export_profile()
    assert "not served" in reduced["engines"]["sglang"]


def test_every_dflash2_tensor_has_a_place_and_every_key_a_reader(sglang: ModuleType, wheel: Path) -> None:
    source = sglang.Source(wheel, *DFLASH)
    made = drafter(DFlash2Config(block_size=4, conv_group_size=8, selector_rank=4))
    names, renames, read = source.module_names(), source.loader_renames(), source.texts()
    for name, tensor in made.export_tensors().items():
        # A module's tensor is its last part; a bare parameter is itself one of the names.
        bare = tensor.ndim > 1 and not name.endswith("weight")
        assert set(places(f"{name}.weight" if bare else name, renames)) <= names, name
    assert set(made.export_config()["dflash_config"]) <= read


def test_every_eagle_tensor_has_a_place_and_its_bias_is_not_optional(sglang: ModuleType, wheel: Path) -> None:
    source = sglang.Source(wheel, *EAGLE)
    names, renames = source.module_names(), source.loader_renames()
    made = drafter(EagleConfig(fc_bias=True))
    for name in made.export_tensors():
        assert set(places(name, renames)) <= names, name
    assert "fc.bias" in made.export_tensors()
    # The key would give attention a bias; the one of fc is there without being asked for.
    assert "bias" in source.texts()
    assert made.export_config()["bias"] is False


def test_every_mtp_tensor_has_a_place(sglang: ModuleType, wheel: Path) -> None:
    source = sglang.Source(wheel, *MTP)
    names, renames = source.module_names(), source.loader_renames()
    assert r"model.mtp_layers.(\d+)." in source.texts()
    for name in drafter(MTPConfig()).export_tensors():
        assert set(places(name.removeprefix("model.mtp_layers.0."), renames)) <= names, name


def test_an_mtp_folder_is_read_as_mimo_s_layer(sglang: ModuleType, wheel: Path) -> None:
    """A draft model of this architecture is turned into the one that has the layer alone."""
    assert drafter(MTPConfig()).export_config()["architectures"] == ["MiMoForCausalLM"]
    assert {"MiMoForCausalLM", "MiMoMTP"} <= sglang.Source(wheel, "configs/model_config.py").texts()
    assert "MiMoMTP" in sglang.Source(wheel, *MTP).class_names()


def test_every_shipped_class_name_is_one_that_sglang_registers(sglang: ModuleType, wheel: Path) -> None:
    for config, files in (
        (EagleConfig(fc_bias=True), EAGLE),
        (Eagle3Config(draft_vocab_size=24), EAGLE3),
        (DFlashConfig(block_size=4), DFLASH),
        (DFlash2Config(block_size=4), DFLASH),
    ):
        (architecture,) = drafter(config).export_config()["architectures"]
        assert architecture in sglang.Source(wheel, files[0]).class_names()
