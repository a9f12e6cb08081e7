"""Checkpoints that are whole or are not used.

A checkpoint is written into a folder aside, its marker last, with the hash of every file, and the
folder is renamed into place. Whoever resumes takes the newest whose files agree with the marker;
others are named in a warning and passed over. If checkpoints exist and none is whole, that is an
error: a run that silently starts again from nothing is the dearest kind of failure.
"""

import hashlib
import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagleray.errors import ArtifactError
from eagleray.files import flush
from eagleray.training.state import TrainingState

WEIGHTS = "drafter.safetensors"
OPTIMIZER = "optimizer.pt"
STATE = "state.json"
MARKER = "complete.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All that a run needs to go on as if it had not stopped."""

    weights: dict[str, Tensor]
    optimizer: list[dict[str, Any]]
    rng: Tensor
    """State of torch's generator on the CPU."""
    state: TrainingState


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        keep: Complete checkpoints to keep besides the best one; older ones are deleted after a save.
    """

    def __init__(self, root: Path, keep: int):
        self.root = root
        self._keep = keep

    def save(self, checkpoint: Checkpoint) -> Path:
        """Publish a checkpoint and return its folder."""
        folder = self.of_step(checkpoint.state.step)
        aside = self.root / f".{folder.name}.{os.getpid()}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.weights.items()}
        save_file(weights, aside / WEIGHTS)
        torch.save({"optimizer": checkpoint.optimizer, "rng": checkpoint.rng}, aside / OPTIMIZER)
        (aside / STATE).write_text(checkpoint.state.model_dump_json())
        hashes = {name: _sha256(aside / name) for name in (WEIGHTS, OPTIMIZER, STATE)}
        (aside / MARKER).write_text(json.dumps({"sha256": hashes}))
        for name in (*hashes, MARKER):
            flush(aside / name)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(aside, folder)
        flush(self.root)
        self._delete_old(checkpoint.state.best_step)
        return folder

    def of_step(self, step: int) -> Path:
        """Where the checkpoint of a step lies, or would."""
        return self.root / f"step-{step:08d}"

    def step_of(self, folder: Path) -> int:
        """Steps done when the checkpoint in `folder` was written."""
        return int(folder.name.removeprefix("step-"))

    def newest(self) -> Path | None:
        """The newest whole checkpoint; None when none was ever written.

        Raises:
            ArtifactError: There are checkpoints, but not one of them is whole.
        """
        folders = self._folders()
        for folder in reversed(folders):
            defect = find_defect(folder)
            if defect is None:
                return folder
            logger.warning("Checkpoint %s is passed over: %s.", folder, defect)
        if folders:
            raise ArtifactError(
                f"None of the {len(folders)} checkpoints in {self.root} is whole (newest: "
                f"{folders[-1].name}: {find_defect(folders[-1])}). Delete the folder to start this run "
                "from nothing."
            )
        return None

    def _folders(self) -> list[Path]:
        return sorted(self.root.glob("step-*")) if self.root.is_dir() else []

    def _delete_old(self, best_step: int | None) -> None:
        whole = [folder for folder in self._folders() if (folder / MARKER).is_file()]
        best = None if best_step is None else self.of_step(best_step)
        for folder in whole[: -self._keep]:
            if folder != best:
                shutil.rmtree(folder)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a whole checkpoint.

    Raises:
        ArtifactError: It is not whole.
    """
    if defect := find_defect(folder):
        raise ArtifactError(f"Checkpoint {folder} cannot be used: {defect}. Resume from another one.")
    stored = torch.load(folder / OPTIMIZER, weights_only=True)
    return Checkpoint(
        weights=load_file(folder / WEIGHTS),
        optimizer=stored["optimizer"],
        rng=stored["rng"],
        state=TrainingState.model_validate_json((folder / STATE).read_text()),
    )


def find_defect(folder: Path) -> str | None:
    """Say why a checkpoint is not whole; None when it is."""
    try:
        hashes = json.loads((folder / MARKER).read_text())["sha256"]
    except FileNotFoundError:
        return f"it has no {MARKER}, so writing it was never finished"
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"its {MARKER} is damaged"
    for name, expected in hashes.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _sha256(folder / name) != expected:
            return f"{name} ({(folder / name).stat().st_size} bytes) does not match its hash in {MARKER}"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
