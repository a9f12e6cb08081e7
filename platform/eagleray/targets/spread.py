"""A target that one device cannot hold: its layers lie on several, and a batch passes through them in turn.

For capturing features only. While a batch is on one device the others idle, unless several batches are on
their way; that is the price of needing nothing but copies of one hidden state between devices.
Shapes: B rows, T positions (real ones of all rows, in packed tensors), L asked layers, D target width.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.targets.attention import PromptAttention
from eagleray.targets.decoder import check_window
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import EMBEDDING
from eagleray.targets.layers import DecoderLayer, RMSNorm
from eagleray.targets.padding import run_without_padding, stack_features
from eagleray.targets.rotary import Rotary
from eagleray.targets.weights import FINAL_NORM, layer_prefix, read_weights, select_layer


class SpreadTarget:
    """Runs whole sequences through layers on several devices."""

    def __init__(
        self, geometry: TargetGeometry, weights: Mapping[str, Tensor], devices: Sequence[torch.device]
    ):
        """Build from tensors that lie where `place_layers` says."""
        self.geometry = geometry
        self.device = devices[0]
        self._embed_VD = weights[EMBEDDING]
        self._final_norm = RMSNorm(weights[FINAL_NORM], geometry.rms_norm_eps)
        self._rotaries = {device: Rotary(geometry, device) for device in devices}
        self._layers = [
            DecoderLayer(geometry, index, select_layer(weights, index), batch_invariant=False)
            for index in range(geometry.num_layers)
        ]
        self._devices = [share_out(index, geometry.num_layers, devices) for index in range(len(self._layers))]

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, devices: Sequence[torch.device]) -> "SpreadTarget":
        """Load the safetensors of a Hugging Face folder, each layer to its device.

        Raises:
            ArtifactError: Not such a folder, or a tensor is missing, unknown or of another shape.
        """
        geometry = TargetGeometry.read(folder)
        return cls(geometry, read_weights(folder, geometry, dtype, place_layers(geometry, devices)), devices)

    @torch.no_grad()
    def capture(self, ids_BT: Tensor, lengths_B: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Features of right-padded whole sequences; zeros in the padding. See `TargetDecoder.capture`."""
        check_window(self.geometry, ids_BT.shape[1])

        def forward(ids_T: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
            return self._forward(ids_T, lengths, layers)

        return run_without_padding(ids_BT, lengths_B, self.device, forward)

    def _forward(self, ids_T: Tensor, lengths: list[int], layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        attentions = {device: PromptAttention(lengths, device) for device in self._rotaries}
        rotations = {
            device: rotary.factors(attentions[device].positions_T)
            for device, rotary in self._rotaries.items()
        }
        hidden_TD = F.embedding(ids_T, self._embed_VD)
        features = []
        for layer, device in zip(self._layers, self._devices, strict=True):
            hidden_TD = layer(hidden_TD.to(device), rotations[device], attentions[device])
            if layer.index in layers:
                features.append(hidden_TD.to(self.device))
        final_TD = self._final_norm(hidden_TD).to(self.device)
        return stack_features(features, final_TD), final_TD


def share_out(index: int, num_layers: int, devices: Sequence[torch.device]) -> torch.device:
    """Device of a layer: runs of neighbours, as equal as can be."""
    return devices[index * len(devices) // num_layers]


def place_layers(geometry: TargetGeometry, devices: Sequence[torch.device]) -> Callable[[str], torch.device]:
    """Where each tensor goes, by its name: embedding to the first device, norm and head to the last."""
    homes = {
        layer_prefix(index): share_out(index, geometry.num_layers, devices)
        for index in range(geometry.num_layers)
    }

    def place(name: str) -> torch.device:
        if name == EMBEDDING:
            return devices[0]
        return next((home for prefix, home in homes.items() if name.startswith(prefix)), devices[-1])

    return place
