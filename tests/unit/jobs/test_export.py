"""The export job: our folders and public ones in, a folder for engines out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.folder import export_drafter, read_profile
from eagleray.targets.heads import load_heads
from jobs.export import app


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("target")
    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 40}
    LlamaForCausalLM(LlamaConfig(num_hidden_layers=6, num_attention_heads=4, **shape)).save_pretrained(folder)
    return folder


@pytest.fixture
def drafter(target: Path, tmp_path: Path) -> Path:
    config = Eagle3Config(draft_vocab_size=40, norm_before_residual=False)
    heads = load_heads(target, torch.float32)
    export_drafter(build_trainable_drafter(config, heads), tmp_path / "own", {"trained_length": 64})
    return tmp_path / "own"


def export(source: Path, to: Path, target: Path) -> Any:
    return CliRunner().invoke(app, [str(source), "--to", str(to), "--target", str(target)])


def test_our_own_folder_is_checked_and_copied_with_what_only_its_profile_knows(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    result = export(drafter, tmp_path / "copy", target)
    assert result.exit_code == 0, result.output
    assert read_profile(tmp_path / "copy") == read_profile(drafter)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "copy" / name).read_bytes() == (drafter / name).read_bytes()


def test_a_public_folder_is_translated_and_says_where_it_came_from(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    (drafter / "speculation_profile.json").unlink()
    tensors = load_file(drafter / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    save_file(renamed, drafter / "model.safetensors")
    assert export(drafter, tmp_path / "copy", target).exit_code == 0
    assert read_profile(tmp_path / "copy")["imported_from"] == "EAGLE-3 (SpecForge, SafeAILab)"
    copied = load_file(tmp_path / "copy" / "model.safetensors")
    assert copied.keys() == tensors.keys()
    assert all(torch.equal(copied[name], tensors[name]) for name in tensors)


def test_a_damaged_folder_and_a_taken_place_give_a_paragraph_and_an_exit_code(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    assert export(drafter, drafter, target).exit_code == 2
    config = json.loads((drafter / "speculation_profile.json").read_text())
    config["settings"]["feature_norm"] = "joint"
    (drafter / "speculation_profile.json").write_text(json.dumps(config))
    assert export(drafter, tmp_path / "copy", target).exit_code == 3
    assert not (tmp_path / "copy").exists()
