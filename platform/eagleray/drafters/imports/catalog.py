"""Every naming of public checkpoints that can be imported. Adding one is a file here and a line below."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eagleray.drafters.base import TrainableDrafter
from eagleray.drafters.catalog import resolve, restore_drafter
from eagleray.drafters.imports import dflash, eagle, eagle3, medusa, speculators
from eagleray.drafters.imports.naming import Naming, PublicCheckpoint
from eagleray.errors import ArtifactError
from eagleray.settings import validate
from eagleray.targets.heads import FrozenHeads

NAMINGS = (eagle3.NAMING, eagle.NAMING, dflash.NAMING, speculators.NAMING, medusa.NAMING)
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "medusa_lm_head.pt")


def import_drafter(folder: Path, heads: FrozenHeads) -> tuple[TrainableDrafter, str]:
    """Load a public checkpoint for the target that `heads` belong to.

    Returns:
        The drafter, and the name of the naming it was written in.

    Raises:
        ArtifactError: The folder is not whole or of no known naming; a tensor or a key is missing, unknown
            or does not fit, and the message names it.
    """
    config = _read_config(folder)
    source = PublicCheckpoint(folder=folder, config=config, tensors=_read_tensors(folder), heads=heads)
    naming = _naming_of(source)
    translation = naming.translate(source)
    spec = resolve(translation.settings["name"])
    settings = validate(spec.config, translation.settings, f"What {folder / 'config.json'} says")
    drafter = restore_drafter(settings, heads, translation.tensors, folder)
    drafter.load_tensors(translation.tensors, folder)
    return drafter, naming.name


def _naming_of(source: PublicCheckpoint) -> Naming:
    for naming in NAMINGS:
        if naming.knows(source.config):
            return naming
    known = "; ".join(naming.name for naming in NAMINGS)
    raise source.refuse(
        f"its architectures are {source.config.get('architectures')} and its model_type is "
        f"{source.config.get('model_type')!r}; known namings: {known}"
    )


def _read_config(folder: Path) -> Mapping[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return config
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise ArtifactError(f"{folder / 'config.json'} cannot be read: {error}.") from None


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    files = next((found for pattern in WEIGHTS if (found := sorted(folder.glob(pattern)))), [])
    if not files:
        raise ArtifactError(f"Drafter {folder} has no weights; expected {', '.join(WEIGHTS)}.")
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            is_safe = path.suffix == ".safetensors"
            tensors |= load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
        except (SafetensorError, RuntimeError, EOFError) as error:
            raise ArtifactError(f"{path} cannot be read: {error}.") from None
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }
