"""Stored target features: one safetensors file per sample, published atomically.

A file is named by the sample it belongs to, so writing it again (after a crash, by two workers)
is harmless. What it was made for travels inside it and is checked at reading: tapped layers, the hash
of the tokens, and a checksum of the values. Features of other layers, of other tokens or with a changed
bit are an error, never a silent mismatch.
Shapes: T positions, L tapped layers, D target width.
"""

import hashlib
import os
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagleray.errors import DataError, NumericsError
from eagleray.targets.config import FeatureStoreConfig

REMEDY = (
    "Run the distil job with --repair: it makes what is damaged or missing again and keeps the rest. After a "
    "change of target_layer_ids or feature_store.dtype start it anew with --redo distil."
)

_MADE_FOR = "made_for"


class FeatureStore:
    """Features of many samples in one folder, fanned out by the first two characters of the id."""

    def __init__(self, folder: Path, layers: tuple[int, ...], dtype: torch.dtype = torch.bfloat16):
        self.folder = folder
        self.layers = layers
        self.dtype = dtype

    def put(self, sample_id: str, input_ids: Sequence[int], features_TLD: Tensor, final_TD: Tensor) -> int:
        """Store the features of a sample's first T tokens; returns the bytes written.

        Not flushed to the disk, which would cost more than capturing: a loss of power can leave a broken
        file, and reading finds that out.

        Raises:
            NumericsError: A value is not finite, or no longer once it is in the store's dtype.
        """
        path = self.path(sample_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        features_TLD, final_TD = self._narrow(sample_id, features_TLD), self._narrow(sample_id, final_TD)
        save_file(
            {"features": features_TLD, "final": final_TD},
            aside,
            # One entry: with several, their order in the file is random, and so are its bytes.
            metadata={_MADE_FOR: _spell(self._expected(input_ids, len(final_TD), features_TLD, final_TD))},
        )
        os.replace(aside, path)
        return path.stat().st_size

    def get(self, sample_id: str, input_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Read features_TLD and final_TD as float32.

        Args:
            input_ids: The whole sequence. T is one less: nothing was computed at its last token.

        Raises:
            DataError: Not stored, damaged, or stored for other layers, tokens or another dtype.
        """
        path = self.path(sample_id)
        try:
            with safe_open(path, framework="pt") as stream:
                found = _parse((stream.metadata() or {}).get(_MADE_FOR, ""))
                features_TLD, final_TD = stream.get_tensor("features"), stream.get_tensor("final")
        except FileNotFoundError:
            raise DataError(f"Sample {sample_id} has no stored features in {self.folder}. {REMEDY}") from None
        except SafetensorError as error:
            raise DataError(f"Features of sample {sample_id} cannot be read ({error}). {REMEDY}") from None
        wanted = self._expected(input_ids, len(input_ids) - 1, features_TLD, final_TD)
        for name, value in wanted.items():
            if found.get(name) != value:
                raise DataError(
                    f"Features of sample {sample_id} have {name} {found.get(name)}; expected {value}. "
                    f"{REMEDY}"
                )
        return features_TLD.float(), final_TD.float()

    def path(self, sample_id: str) -> Path:
        """Where the features of a sample lie, or will."""
        return self.folder / sample_id[:2] / f"{sample_id}.safetensors"

    def _expected(self, input_ids: Sequence[int], positions: int, *values: Tensor) -> dict[str, str]:
        return {
            "layers": ",".join(map(str, self.layers)),
            "positions": str(positions),
            "token_hash": token_hash(input_ids),
            "dtype": str(self.dtype).removeprefix("torch."),
            "crc32": _checksum(*values),
        }

    def _narrow(self, sample_id: str, values: Tensor) -> Tensor:
        narrow = values.to(self.dtype).cpu().contiguous()
        if not torch.isfinite(narrow).all():
            largest = values.abs().max().item()
            raise NumericsError(
                f"Features of sample {sample_id} are not finite as {self.dtype}: the largest magnitude is "
                f"{largest:g}. If that is a number, set feature_store.dtype to bfloat16 or float32; "
                "if not, the target itself computes no number: check target.dtype."
            )
        return narrow


def token_hash(input_ids: Sequence[int]) -> str:
    """Hash of a whole sequence: features belong to these tokens and no others."""
    return hashlib.sha256(array("q", input_ids).tobytes()).hexdigest()[:16]


def feature_dtype(config: FeatureStoreConfig) -> torch.dtype:
    """The dtype that a recipe names."""
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def bytes_per_token(num_layers: int, hidden_size: int, dtype: torch.dtype) -> int:
    """Bytes that one position takes: `num_layers` tapped layers and the final state."""
    return (num_layers + 1) * hidden_size * dtype.itemsize


def _spell(facts: Mapping[str, str]) -> str:
    return ";".join(f"{name}={value}" for name, value in facts.items())


def _parse(text: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in text.split(";"))


def _checksum(*tensors: Tensor) -> str:
    checksum = 0
    for tensor in tensors:
        checksum = zlib.crc32(tensor.view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"
