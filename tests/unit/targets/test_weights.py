"""Reading a folder: everything that belongs there, and nothing else."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagleray.errors import ArtifactError
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.weights import read_weights

FIRST_QUERY = "model.layers.0.self_attn.q_proj.weight"


def read(folder):
    return read_weights(folder, TargetGeometry.read(folder), torch.float32, lambda _: torch.device("cpu"))


@pytest.fixture
def edited(llama, tmp_path):
    """A copy of a target whose tensors a test may change before it is read."""
    shutil.copytree(llama.folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.safetensors"

    def edit(change):
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})
        return tmp_path

    return edit


def test_a_sharded_folder_reads_like_a_whole_one(llama, tmp_path):
    llama.reference.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    whole, sharded = read(llama.folder), read(tmp_path)
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_a_missing_tensor_is_named(edited):
    folder = edited(lambda tensors: tensors.pop(FIRST_QUERY))
    with pytest.raises(ArtifactError, match=FIRST_QUERY):
        read(folder)


def test_an_unknown_tensor_is_named(edited):
    folder = edited(lambda tensors: tensors.update({"model.layers.0.mlp.router.weight": torch.zeros(1)}))
    with pytest.raises(ArtifactError, match=r"model\.layers\.0\.mlp\.router\.weight"):
        read(folder)


def test_another_shape_is_named_with_both(edited):
    folder = edited(lambda tensors: tensors.update({FIRST_QUERY: torch.zeros(64, 32)}))
    with pytest.raises(ArtifactError, match=r"q_proj.weight.*\(64, 32\).*\(64, 64\)"):
        read(folder)


def test_stored_rope_frequencies_of_old_checkpoints_are_passed_over(edited):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    assert name not in read(edited(lambda tensors: tensors.update({name: torch.zeros(8)})))


def test_a_folder_without_tensors_is_refused(llama, tmp_path):
    shutil.copy(llama.folder / "config.json", tmp_path)
    with pytest.raises(ArtifactError, match="lacks"):
        read(tmp_path)
