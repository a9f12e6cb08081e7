"""A drafter as a folder: what SGLang and vLLM load, and what we need to load it again.

`config.json` and `model.safetensors` are the engines'; `speculation_profile.json` is ours and says
what the other two leave open. A folder appears whole or not at all.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eagleray.drafters.base import TrainableDrafter
from eagleray.drafters.catalog import resolve, restore_drafter
from eagleray.errors import ArtifactError
from eagleray.files import write_json_atomically
from eagleray.settings import validate
from eagleray.targets.heads import FrozenHeads

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PROFILE = "speculation_profile.json"


def export_drafter(drafter: TrainableDrafter, folder: Path, profile: dict[str, Any]) -> None:
    """Write a drafter folder, replacing an older one.

    Args:
        profile: What only the caller knows (trained length, regime, measured tau with its definition);
            it joins what the drafter says of itself.
    """
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file(drafter.export_tensors(), aside / WEIGHTS, metadata={"format": "pt"})
    _write_json(aside / CONFIG, drafter.export_config())
    _write_json(aside / PROFILE, {**drafter.export_profile(), **profile})
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(aside, folder)


def load_drafter(folder: Path, heads: FrozenHeads) -> TrainableDrafter:
    """Load a drafter folder for the target that `heads` belong to, onto their device.

    Raises:
        ArtifactError: A file is missing or damaged, or a tensor's name or shape is not the expected one.
    """
    profile = read_profile(folder)
    spec = resolve(profile["algorithm"])
    try:
        tensors = load_file(folder / WEIGHTS)
    except (FileNotFoundError, SafetensorError) as error:
        raise ArtifactError(
            f"{folder / WEIGHTS} cannot be read: {error}. Export the drafter again."
        ) from None
    config = validate(spec.config, profile["settings"], f"Settings in {folder / PROFILE}")
    drafter = restore_drafter(config, heads, tensors, folder)
    drafter.load_tensors(tensors, folder)
    return drafter.to(heads.embed_VD.device)


def drafter_hash(folder: Path) -> str:
    """Hash of what a drafter folder computes with: weights and configuration, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def read_profile(folder: Path) -> dict[str, Any]:
    """Read `speculation_profile.json`.

    Raises:
        ArtifactError: It is missing, is not JSON, or lacks the algorithm or its settings.
    """
    path = folder / PROFILE
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise ArtifactError(
            f"{path} cannot be read: {error}. Expected a folder that this program exported."
        ) from None
    if missing := {"algorithm", "settings"} - set(profile):
        raise ArtifactError(f"{path} lacks {sorted(missing)}. Expected a folder that this program exported.")
    return profile


def extend_profile(folder: Path, facts: dict[str, Any]) -> None:
    """Add what became known after the export to a folder's profile; its hash stays.

    Raises:
        ArtifactError: The profile is missing or damaged.
    """
    write_json_atomically(folder / PROFILE, {**read_profile(folder), **facts})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
