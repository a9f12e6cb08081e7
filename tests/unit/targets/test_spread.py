"""Layers on several devices: the same features, each tensor in its place."""

import pytest
import torch

from eagleray.errors import ConfigError
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.spread import SpreadTarget, place_layers, share_out

CPU = torch.device("cpu")


@pytest.mark.parametrize("layers", [(0, 2), ()], ids=["some layers", "the final state alone"])
def test_features_are_those_of_one_device(llama, layers):
    """Two names of the processor: what goes where is told by the next test."""
    whole = TargetDecoder.load(llama.folder, torch.float32)
    parts = SpreadTarget.load(llama.folder, torch.float32, [CPU, torch.device("cpu", 0)])
    ids_BT = torch.randint(160, (3, 20), generator=torch.Generator().manual_seed(1))
    lengths_B = torch.tensor([20, 7, 13])
    for expected, found in zip(
        whole.capture(ids_BT, lengths_B, layers), parts.capture(ids_BT, lengths_B, layers), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_neighbouring_layers_share_a_device_and_the_ends_are_where_they_are_needed(llama):
    geometry = TargetGeometry.read(llama.folder)
    devices = [torch.device("cuda", index) for index in range(3)]
    place = place_layers(geometry, devices)
    names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(4)]
    assert [place(name).index for name in names] == [0, 0, 1, 2]
    assert place("model.embed_tokens.weight").index == 0
    assert place("model.norm.weight").index == place("lm_head.weight").index == 2
    assert [share_out(layer, 80, devices[:2]).index for layer in (0, 39, 40, 79)] == [0, 0, 1, 1]


def test_layer_1_is_not_taken_for_layer_10(llama):
    geometry = TargetGeometry.read(llama.folder)
    wide = geometry.__class__(**{**vars(geometry), "num_layers": 20})
    place = place_layers(wide, [torch.device("cuda", index) for index in range(2)])
    assert place("model.layers.1.mlp.up_proj.weight").index == 0
    assert place("model.layers.10.mlp.up_proj.weight").index == 1


def test_a_sliding_window_is_respected_here_too(llama, monkeypatch):
    parts = SpreadTarget.load(llama.folder, torch.float32, [CPU])
    monkeypatch.setattr(
        parts, "geometry", parts.geometry.__class__(**{**vars(parts.geometry), "sliding_window": 8})
    )
    with pytest.raises(ConfigError, match="slides its attention over 8"):
        parts.capture(torch.zeros(1, 9, dtype=torch.int64), torch.tensor([9]), (0,))
