"""Public checkpoints become the drafters they were, or are refused by the name of what does not fit."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.eagle.config import EagleConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.folder import export_drafter, load_drafter
from eagleray.drafters.imports.catalog import import_drafter
from eagleray.drafters.imports.dflash import usual_layers
from eagleray.drafters.medusa.config import MedusaConfig
from eagleray.errors import ArtifactError
from eagleray.targets.heads import FrozenHeads

Content = tuple[dict[str, Any], dict[str, Tensor]]
LAYER = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "vocab_size",
    "rope_theta",
    "hidden_act",
    "attention_bias",
    "num_hidden_layers",
    "layer_types",
    "sliding_window",
)


def layer_section(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in LAYER if key in config}


def specforge_eagle3(config: dict[str, Any], tensors: dict[str, Tensor], heads: FrozenHeads) -> Content:
    """bfloat16 would round; else the folder is ours without the keys that only vLLM reads."""
    kept = ("architectures", "model_type", "draft_vocab_size", "eagle_config", "norm_before_residual")
    return {**layer_section(config), **{key: config[key] for key in kept}}, tensors


def safeailab_eagle3(config: dict[str, Any], tensors: dict[str, Tensor], heads: FrozenHeads) -> Content:
    """No layer ids: the usual three. The target's embedding is shipped."""
    kept = ("architectures", "draft_vocab_size")
    written = {**layer_section(config), **{key: config[key] for key in kept}}
    return written, {**tensors, "embed_tokens.weight": heads.embed_VD.clone()}


def speculators_eagle3(config: dict[str, Any], tensors: dict[str, Tensor], heads: FrozenHeads) -> Content:
    written = {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": layer_section(config),
        "draft_vocab_size": config["draft_vocab_size"],
        "eagle_aux_hidden_state_layer_ids": [
            layer + 1 for layer in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        ],
        "fc_norm": config.get("fc_norm", False),
        "norm_output": config.get("norm_output", False),
    }
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    return written, {**renamed, "embed_tokens.weight": heads.embed_VD.clone()}


def zlab_dflash(config: dict[str, Any], tensors: dict[str, Tensor], heads: FrozenHeads) -> Content:
    """The newer layout: `block_size` inside the section, a `model.` prefix on every name."""
    section = {
        "block_size": config["block_size"],
        "mask_token_id": config["dflash_config"]["mask_token_id"],
        "target_layer_ids": config["dflash_config"]["target_layer_ids"],
    }
    written = {**layer_section(config), "architectures": ["DFlashDraftModel"], "model_type": "qwen3"}
    written |= {"num_target_layers": 8, "dflash_config": section, "is_causal": False}
    return written, {f"model.{name}": tensor for name, tensor in tensors.items()}


def speculators_dflash(config: dict[str, Any], tensors: dict[str, Tensor], heads: FrozenHeads) -> Content:
    ids = config["dflash_config"]["target_layer_ids"]
    return {
        "speculators_model_type": "dflash",
        "transformer_layer_config": layer_section(config),
        "block_size": config["block_size"],
        "mask_token_id": config["dflash_config"]["mask_token_id"],
        "aux_hidden_state_layer_ids": [layer + 1 for layer in ids],
    }, tensors


def safeailab_eagle(config: dict[str, Any], tensors: dict[str, Tensor], heads: FrozenHeads) -> Content:
    """A Llama of one layer, with the target's embedding; `bias` is about `fc`."""
    written = {**layer_section(config), "architectures": ["LlamaForCausalLM"], "bias": "fc.bias" in tensors}
    return written, {**tensors, "embed_tokens.weight": heads.embed_VD.clone()}


def original_medusa(config: dict[str, Any], tensors: dict[str, Tensor], heads: FrozenHeads) -> Content:
    blocks = config["num_hidden_layers"]
    renamed = {
        re.sub(
            r"lm_heads\.(\d+)",
            rf"\1.{blocks}",
            re.sub(r"blocks\.(\d+)\.layers\.(\d+)", r"\1.\2.linear", name),
        ): t
        for name, t in tensors.items()
    }
    return {"medusa_num_heads": config["num_heads"], "medusa_num_layers": blocks}, renamed


CASES: dict[str, tuple[DrafterConfig, Callable[..., Content], str]] = {
    "SpecForge EAGLE-3": (
        Eagle3Config(draft_vocab_size=24, target_layer_ids=(0, 2, 5), norm_before_residual=False),
        specforge_eagle3,
        "EAGLE-3 (SpecForge, SafeAILab)",
    ),
    "SafeAILab EAGLE-3": (
        Eagle3Config(draft_vocab_size=24, norm_before_residual=False),
        safeailab_eagle3,
        "EAGLE-3 (SpecForge, SafeAILab)",
    ),
    "speculators EAGLE-3": (
        Eagle3Config(draft_vocab_size=24, feature_norm="per_layer", norm_output=True),
        speculators_eagle3,
        "speculators",
    ),
    "z-lab DFlash": (DFlashConfig(block_size=4), zlab_dflash, "DFlash (z-lab, SpecForge)"),
    "speculators DFlash": (
        DFlashConfig(block_size=4, draft_vocab_size=24, target_layer_ids=(1, 6)),
        speculators_dflash,
        "speculators",
    ),
    "SafeAILab EAGLE": (EagleConfig(fc_bias=True), safeailab_eagle, "EAGLE (SafeAILab)"),
    "EAGLE under vLLM's name": (
        EagleConfig(),
        lambda config, tensors, heads: (
            config,
            {f"model.{name}": tensor for name, tensor in tensors.items()},
        ),
        "EAGLE (SafeAILab)",
    ),
    "original Medusa": (MedusaConfig(num_heads=3, num_blocks=2, output="own"), original_medusa, "Medusa"),
}


def make(config: DrafterConfig, heads: FrozenHeads, counts: Tensor) -> TrainableDrafter:
    torch.manual_seed(3)
    drafter = build_trainable_drafter(config, heads, counts)
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return drafter


def write(folder: Path, content: Content) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(content[0]))
    save_file(
        {name: tensor.contiguous() for name, tensor in content[1].items()}, folder / "model.safetensors"
    )
    return folder


@pytest.mark.parametrize("case", CASES)
def test_an_imported_checkpoint_is_the_drafter_that_was_written(
    case: str, heads: FrozenHeads, counts: Tensor, make_batch: Callable[..., TrainingBatch], tmp_path: Path
) -> None:
    config, writer, naming = CASES[case]
    drafter = make(config, heads, counts)
    written = writer(drafter.export_config(), drafter.export_tensors(), heads)
    imported, found = import_drafter(write(tmp_path / "public", written), heads)
    assert found == naming
    assert imported.tapped_layers == drafter.tapped_layers
    own, other = drafter.export_tensors(), imported.export_tensors()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)
    # What an engine is told is what it was told of the original, and so is every number that trains.
    export_drafter(imported, tmp_path / "ours", {"imported_from": found})
    again = load_drafter(tmp_path / "ours", heads)
    assert again.export_config() == drafter.export_config()


@pytest.fixture
def written(heads: FrozenHeads, counts: Tensor) -> Callable[[str], Content]:
    """Config and tensors of a case, to be damaged."""

    def content(case: str) -> Content:
        config, writer, _ = CASES[case]
        drafter = make(config, heads, counts)
        return writer(drafter.export_config(), drafter.export_tensors(), heads)

    return content


DAMAGE: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Tensor]], Any], str]] = {
    "a tensor is missing": (
        "SpecForge EAGLE-3",
        lambda config, tensors: tensors.pop("norm.weight"),
        r"Missing: \['norm.weight'\]",
    ),
    "a tensor is unknown": (
        "z-lab DFlash",
        lambda config, tensors: tensors.update({"markov_head.markov_w1.weight": torch.ones(2)}),
        r"Unknown: \['markov_head.markov_w1.weight'\]",
    ),
    "a shape is wrong": (
        "speculators EAGLE-3",
        lambda config, tensors: tensors.update({"fc.weight": torch.ones(16, 32)}),
        r"fc.weight has shape \(16, 32\); expected \(16, 48\)",
    ),
    "the vocabulary map is lost": (
        "SpecForge EAGLE-3",
        lambda config, tensors: tensors.pop("d2t"),
        "no tensor 'd2t'",
    ),
    "the vocabulary map is of ids, not offsets": (
        "SpecForge EAGLE-3",
        lambda config, tensors: tensors.update({"d2t": tensors["d2t"] + torch.arange(24)}),
        "d2t and t2d disagree",
    ),
    "the two spellings of layer ids contradict each other": (
        "SpecForge EAGLE-3",
        lambda config, tensors: config.update({"eagle_aux_hidden_state_layer_ids": [0, 2, 5]}),
        r"at top level must be \[1, 3, 6\], one higher; they are \[0, 2, 5\]",
    ),
    "the rotary base is another": (
        "speculators DFlash",
        lambda config, tensors: config["transformer_layer_config"].update(rope_theta=5e5),
        "rope_theta is 500000.0; expected 100000.0",
    ),
    "it embeds tokens in its own way": (
        "SafeAILab EAGLE-3",
        lambda config, tensors: tensors.update({"embed_tokens.weight": torch.zeros(40, 16)}),
        "not the embedding of the target",
    ),
    "it predicts from the anchor": (
        "speculators DFlash",
        lambda config, tensors: config.update(sample_from_anchor=True),
        "sample_from_anchor is True; expected False",
    ),
    "it holds what no drafter here has": (
        "z-lab DFlash",
        lambda config, tensors: config["dflash_config"].update(projector_type="domino"),
        "dflash_config holds projector_type",
    ),
    "its head is its own": (
        "speculators DFlash",
        lambda config, tensors: tensors.update({"lm_head.weight": torch.zeros(24, 16)}),
        "lm_head.weight of shape .* is not the target's",
    ),
    "it is of no known naming": (
        "SpecForge EAGLE-3",
        lambda config, tensors: config.update(architectures=["Qwen3DSparkModel"]),
        r"\['Qwen3DSparkModel'\] .* known namings: EAGLE-3",
    ),
    "norm_output means two things": (
        "SpecForge EAGLE-3",
        lambda config, tensors: config.update(norm_output=True),
        "norm_output is true",
    ),
    "heads are missing": (
        "original Medusa",
        lambda config, tensors: config.update(medusa_num_heads=4),
        r"Missing: \['blocks.3.layers.0.bias'",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_does_not_fit_is_refused_by_its_name(
    damage: str, written: Callable[[str], Content], heads: FrozenHeads, tmp_path: Path
) -> None:
    case, break_it, message = DAMAGE[damage]
    config, tensors = written(case)
    break_it(config, tensors)
    with pytest.raises(ArtifactError, match=message):
        import_drafter(write(tmp_path / "public", (config, tensors)), heads)


def test_weights_of_the_older_file_format_are_read(
    written: Callable[[str], Content], heads: FrozenHeads, tmp_path: Path
) -> None:
    config, tensors = written("SafeAILab EAGLE-3")
    folder = write(tmp_path / "public", (config, tensors))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match="has no weights"):
        import_drafter(folder, heads)
    torch.save(tensors, folder / "pytorch_model.bin")
    assert import_drafter(folder, heads)[0].tapped_layers == (1, 3, 4)


@pytest.mark.parametrize(
    ("target", "layers", "ids"), [(36, 5, [1, 9, 17, 25, 33]), (64, 5, [1, 16, 31, 46, 61]), (30, 1, [15])]
)
def test_dflash_layers_that_are_not_named_are_the_published_ones(
    target: int, layers: int, ids: list[int]
) -> None:
    assert usual_layers(target, layers) == ids


def test_the_map_of_a_reduced_vocabulary_is_offsets(tmp_path: Path, heads: FrozenHeads) -> None:
    """Kept ids 0, 2, 5 and 9: offsets 0, 1, 3, 6, and draft ids come back as these ids."""
    counts = torch.zeros(40, dtype=torch.int64)
    counts[[0, 2, 5, 9]] = 1
    drafter = make(Eagle3Config(draft_vocab_size=4), heads, counts)
    export_drafter(drafter, tmp_path / "drafter", {})
    tensors = load_file(tmp_path / "drafter" / "model.safetensors")
    assert tensors["d2t"].tolist() == [0, 1, 3, 6]
    assert tensors["t2d"].nonzero().flatten().tolist() == [0, 2, 5, 9]
    loaded: Any = load_drafter(tmp_path / "drafter", heads)
    assert loaded.to_target_ids(torch.arange(4)).tolist() == [0, 2, 5, 9]
    del tensors["d2t"]
    save_file(tensors, tmp_path / "drafter" / "model.safetensors")
    with pytest.raises(ArtifactError, match="no tensor 'd2t'"):
        load_drafter(tmp_path / "drafter", heads)
