"""Weights in eight bits: scales of every layout, by hand, and in a folder."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagleray.errors import ArtifactError
from eagleray.targets.fp8 import dequantise
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.weights import read_weights

FP8 = torch.float8_e4m3fn
UP = "model.layers.0.mlp.up_proj"


def test_one_scale_one_of_each_row_and_one_of_each_block():
    weight = torch.tensor([[1.0, 2.0], [4.0, -8.0]]).to(FP8)
    assert dequantise(weight, torch.tensor(0.5)).tolist() == [[0.5, 1.0], [2.0, -4.0]]
    assert dequantise(weight, torch.tensor([[0.5], [2.0]])).tolist() == [[0.5, 1.0], [8.0, -16.0]]
    large = torch.ones(130, 256).to(FP8)
    found = dequantise(large, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert (found[0, 0], found[127, 128], found[128, 127], found[129, 255]) == (1, 2, 3, 4)


def test_a_scale_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="does not fit a weight of 2 x 2"):
        dequantise(torch.zeros(2, 2).to(FP8), torch.ones(3))


def read(folder):
    return read_weights(folder, TargetGeometry.read(folder), torch.float32, lambda _: torch.device("cpu"))


@pytest.fixture
def in_eight_bits(llama, tmp_path):
    """A folder with one weight in eight bits, with a scale of each row under a name, or none."""

    def make(kind):
        shutil.copytree(llama.folder, tmp_path, dirs_exist_ok=True)
        tensors = load_file(tmp_path / "model.safetensors")
        weight = tensors[f"{UP}.weight"]
        scale = weight.abs().amax(1, keepdim=True) / 448
        tensors[f"{UP}.weight"] = (weight / scale).to(FP8)
        if kind:
            tensors[f"{UP}.{kind}"] = scale
            tensors[f"{UP}.input_scale"] = torch.ones(1)
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path, weight

    return make


@pytest.mark.parametrize("kind", ["weight_scale", "weight_scale_inv"])
def test_a_folder_in_eight_bits_is_read_to_a_sixteenth(in_eight_bits, kind):
    folder, weight = in_eight_bits(kind)
    found = read(folder)[f"{UP}.weight"]
    # Three bits of mantissa: half a step is a sixteenth; below the smallest exponent it is absolute.
    torch.testing.assert_close(found, weight, rtol=1 / 16, atol=float(weight.abs().max()) * 2e-6)


def test_a_weight_in_eight_bits_without_its_scale_is_an_error_and_no_noise(in_eight_bits):
    folder, _ = in_eight_bits(None)
    with pytest.raises(ArtifactError, match=r"up_proj.weight' is in eight bits"):
        read(folder)
