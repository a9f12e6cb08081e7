"""Writing beside the training: one at a time, and no failure is lost."""

import threading
from pathlib import Path

import pytest
import torch

from eagleray.errors import ArtifactError
from eagleray.training import checkpoint as module
from eagleray.training.checkpoint import Checkpoint, CheckpointFolder
from eagleray.training.checkpoint_writer import CheckpointWriter
from eagleray.training.state import TrainingState


def made(step: int) -> Checkpoint:
    state = TrainingState(fingerprint="f", step=step)
    return Checkpoint(weights={"w": torch.ones(2)}, optimizer={}, rng=torch.get_rng_state(), state=state)


def test_the_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, write = threading.Event(), module._write

    def slow(checkpoint: Checkpoint, folder: Path) -> None:
        assert may_write.wait(60)
        write(checkpoint, folder)

    monkeypatch.setattr(module, "_write", slow)
    folder = CheckpointFolder(tmp_path, 2)
    writer = CheckpointWriter(folder)
    place = writer.save(made(1))
    assert folder.newest() is None
    may_write.set()
    writer.wait()
    assert folder.newest() == place


def test_a_checkpoint_that_could_not_be_written_fails_the_next_and_not_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    folder = CheckpointFolder(tmp_path, 2)
    writer = CheckpointWriter(folder)
    writer.save(made(1))
    writer.wait()
    monkeypatch.setattr(module, "_write", full)
    writer.save(made(2))
    with pytest.raises(ArtifactError, match="No space left"):
        writer.save(made(3))
    assert folder.newest() == folder.of_step(1)
    writer.wait()
