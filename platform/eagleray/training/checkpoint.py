"""Checkpoints that are whole or are not used.

A checkpoint is written into a folder aside, its marker last, with the hash of every file, and the
folder is renamed into place. Tensors are whole and by name, whatever backend and number of ranks held
them, and all files are safetensors or JSON. Whoever resumes takes the newest whose files agree with the
marker; others are named in a warning and passed over. If checkpoints exist and none is whole, that is an
error: a run that silently starts again from nothing is the dearest kind of failure.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagleray.errors import ArtifactError, ConfigError
from eagleray.files import flush
from eagleray.training.optimizer import OptimizerState
from eagleray.training.state import TrainingState

WEIGHTS = "drafter.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MARKER = "complete.json"
RNG = "rng"
SEPARATOR = ":"
"""Between the name of a parameter and that of its state; names of parameters have none."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All that a run needs to go on as if it had not stopped."""

    weights: dict[str, Tensor]
    optimizer: OptimizerState
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
        """Publish a checkpoint and return its folder.

        Raises:
            ArtifactError: It could not be written (the disk is full, say). Those before it are untouched.
        """
        folder = self.of_step(checkpoint.state.step)
        aside = self.root / f".{folder.name}.{os.getpid()}"
        for unfinished in self.root.glob(".step-*"):
            shutil.rmtree(unfinished)
        try:
            aside.mkdir(parents=True)
            _write(checkpoint, aside)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise ArtifactError(
                f"Checkpoint {folder} could not be written: {error}. The disk has "
                f"{shutil.disk_usage(self.root).free / 2**30:.2f} GiB free. Make room there, or lower "
                "training.keep_checkpoints; the same command then goes on from the newest whole checkpoint."
            ) from error
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

    def adopt(self, other: Path) -> None:
        """Go on from the checkpoints of another run, where this one has none yet: copy the newest, and the
        best if it knows one.

        Raises:
            ConfigError: There is none.
            ArtifactError: None is whole.
        """
        if self.newest() is not None:
            return
        there = CheckpointFolder(other, self._keep)
        newest = there.newest()
        if newest is None:
            raise ConfigError(
                f"There is no checkpoint in {other} to resume from. Correct training.start.checkpoints, or "
                "set training.start.how to fresh."
            )
        best_step = load_checkpoint(newest).state.best_step
        wanted = [newest] if best_step is None else [there.of_step(best_step), newest]
        self.take_over(
            [folder.name for folder in wanted], lambda name, aside: shutil.copytree(other / name, aside)
        )

    def take_over(self, names: Sequence[str], fetch: Callable[[str, Path], object]) -> None:
        """Let `fetch` fill a folder aside with each checkpoint, the newest last.

        A start that is killed before the newest is here goes on from the best: the same steps again.
        """
        for name in names:
            aside = self.root / f".{name}.{os.getpid()}"
            shutil.rmtree(aside, ignore_errors=True)
            fetch(name, aside)
            shutil.rmtree(self.root / name, ignore_errors=True)
            os.replace(aside, self.root / name)

    def whole(self) -> list[Path]:
        """Checkpoints whose writing was finished, the oldest first."""
        return [folder for folder in self._folders() if (folder / MARKER).is_file()]

    def _folders(self) -> list[Path]:
        return sorted(self.root.glob("step-*")) if self.root.is_dir() else []

    def _delete_old(self, best_step: int | None) -> None:
        best = None if best_step is None else self.of_step(best_step)
        for folder in self.whole()[: -self._keep]:
            if folder != best:
                shutil.rmtree(folder)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a whole checkpoint.

    Raises:
        ArtifactError: It is not whole.
    """
    if defect := find_defect(folder):
        raise ArtifactError(f"Checkpoint {folder} cannot be used: {defect}. Resume from another one.")
    stored = load_file(folder / OPTIMIZER)
    rng = stored.pop(RNG)
    optimizer: OptimizerState = {}
    for name, tensor in stored.items():
        parameter, _, key = name.partition(SEPARATOR)
        optimizer.setdefault(parameter, {})[key] = tensor
    return Checkpoint(
        weights=load_file(folder / WEIGHTS),
        optimizer=optimizer,
        rng=rng,
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


def _write(checkpoint: Checkpoint, folder: Path) -> None:
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.weights.items()}
    remembered = {
        f"{name}{SEPARATOR}{key}": tensor.contiguous()
        for name, state in checkpoint.optimizer.items()
        for key, tensor in state.items()
    }
    save_file(weights, folder / WEIGHTS)
    save_file({RNG: checkpoint.rng, **remembered}, folder / OPTIMIZER)
    (folder / STATE).write_text(checkpoint.state.model_dump_json())
    hashes = {name: _sha256(folder / name) for name in (WEIGHTS, OPTIMIZER, STATE)}
    (folder / MARKER).write_text(json.dumps({"sha256": hashes}))
    for name in (*hashes, MARKER):
        flush(folder / name)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
