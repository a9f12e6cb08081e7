"""Stored target features: one safetensors file per sample, published atomically.

A file is named by the sample it belongs to, so writing it again (after a crash, by two workers)
is harmless. The tapped layers and the token count travel inside the file and are checked at
reading: features of other layers or of a shorter sequence are an error, never a silent mismatch.
Shapes: T positions, L tapped layers, D target width.
"""

import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagleray.errors import DataError


class FeatureStore:
    """Features of many samples in one folder, fanned out by the first two characters of the id."""

    def __init__(self, folder: Path, layers: tuple[int, ...], dtype: torch.dtype = torch.bfloat16):
        self.folder = folder
        self.layers = layers
        self.dtype = dtype

    def put(self, sample_id: str, features_TLD: Tensor, final_TD: Tensor) -> int:
        """Store a sample's features; returns the bytes written."""
        path = self._path(sample_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        tensors = {
            "features": features_TLD.to(self.dtype).contiguous(),
            "final": final_TD.to(self.dtype).contiguous(),
        }
        save_file(tensors, aside, metadata={"layers": _spell(self.layers), "tokens": str(len(final_TD))})
        os.replace(aside, path)
        return path.stat().st_size

    def has(self, sample_id: str) -> bool:
        """True when features of this sample are stored."""
        return self._path(sample_id).is_file()

    def get(self, sample_id: str, tokens: int) -> tuple[Tensor, Tensor]:
        """Read features_TLD and final_TD as float32.

        Args:
            tokens: Positions the caller expects, i.e. the sequence length minus one.

        Raises:
            DataError: Not stored, or stored for other layers or another length.
        """
        path = self._path(sample_id)
        remedy = "Delete the feature folder and distil again with distil.capture_features on."
        try:
            with safe_open(path, framework="pt") as stream:
                metadata = stream.metadata() or {}
                if metadata.get("layers") != _spell(self.layers):
                    raise DataError(
                        f"Features of sample {sample_id} are of layers {metadata.get('layers')}; "
                        f"the drafter taps {_spell(self.layers)}. {remedy}"
                    )
                if metadata.get("tokens") != str(tokens):
                    raise DataError(
                        f"Features of sample {sample_id} cover {metadata.get('tokens')} positions; "
                        f"expected {tokens}. {remedy}"
                    )
                return stream.get_tensor("features").float(), stream.get_tensor("final").float()
        except FileNotFoundError:
            raise DataError(f"Sample {sample_id} has no stored features in {self.folder}. {remedy}") from None

    def _path(self, sample_id: str) -> Path:
        return self.folder / sample_id[:2] / f"{sample_id}.safetensors"


def _spell(layers: tuple[int, ...]) -> str:
    return ",".join(map(str, layers))
