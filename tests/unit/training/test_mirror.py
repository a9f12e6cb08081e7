"""Copies of checkpoints elsewhere: whole or not used, pruned alike, and never in the training's way."""

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagleray.errors import ArtifactError, DataError
from eagleray.training import mirror as module
from eagleray.training.checkpoint import MARKER, WEIGHTS, Checkpoint, CheckpointFolder, load_checkpoint
from eagleray.training.checkpoint_writer import CheckpointWriter
from eagleray.training.loop import TrainingJob
from eagleray.training.loop import train as run
from eagleray.training.mirror import CheckpointMirror
from eagleray.training.state import TrainingState


def made(step: int, best_step: int | None = None) -> Checkpoint:
    state = TrainingState(fingerprint="f", step=step, best_step=best_step)
    weights = {"w": torch.full((3,), float(step))}
    return Checkpoint(weights=weights, optimizer={}, rng=torch.get_rng_state(), state=state)


@pytest.fixture
def mirror(tmp_path: Path) -> CheckpointMirror:
    return CheckpointMirror(f"file://{tmp_path}/elsewhere/run")


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere" / "run"


def train(folder: CheckpointFolder, mirror: CheckpointMirror, *checkpoints: Checkpoint) -> None:
    for checkpoint in checkpoints:
        writer = CheckpointWriter(folder, mirror)
        writer.save(checkpoint)
        writer.wait()
        mirror.finish()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_fresh_machine_goes_on_from_the_mirror_with_the_best_checkpoint(
    tmp_path: Path, mirror: CheckpointMirror, there: Path
) -> None:
    folder = CheckpointFolder(tmp_path / "here", keep=1)
    train(folder, mirror, made(1), made(2, best_step=2), made(3, best_step=2), made(4, best_step=2))
    assert names(there) == names(folder.root) == ["step-00000002", "step-00000004"]
    shutil.rmtree(folder.root)
    mirror.restore(folder)
    newest = folder.newest()
    assert newest == folder.of_step(4)
    assert load_checkpoint(newest).weights["w"].tolist() == [4.0] * 3
    assert load_checkpoint(folder.of_step(2)).state.step == 2


def test_a_run_with_checkpoints_of_its_own_takes_none(tmp_path: Path, mirror: CheckpointMirror) -> None:
    train(CheckpointFolder(tmp_path / "other", keep=2), mirror, made(9))
    own = CheckpointFolder(tmp_path / "here", keep=2)
    own.save(made(5))
    mirror.restore(own)
    assert own.newest() == own.of_step(5)


@pytest.mark.parametrize("damage", ["unfinished", "changed", "its best is gone"])
def test_what_is_not_whole_there_is_passed_over(
    tmp_path: Path, mirror: CheckpointMirror, there: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path / "here", keep=3)
    train(folder, mirror, made(1), made(2), made(3, best_step=2))
    if damage == "unfinished":
        (there / "step-00000003" / MARKER).unlink()
    elif damage == "changed":
        (there / "step-00000003" / WEIGHTS).write_bytes(b"half")
    else:
        shutil.rmtree(there / "step-00000002")
    shutil.rmtree(folder.root)
    with caplog.at_level(logging.WARNING):
        mirror.restore(folder)
    assert folder.newest() == folder.of_step(1 if damage == "its best is gone" else 2)
    assert not folder.of_step(3).exists()
    assert ("passed over" in caplog.text) == (damage != "unfinished")


def test_a_mirror_without_a_whole_checkpoint_is_an_error_and_not_a_new_start(
    tmp_path: Path, mirror: CheckpointMirror, there: Path
) -> None:
    folder = CheckpointFolder(tmp_path / "here", keep=3)
    train(folder, mirror, made(1))
    (there / "step-00000001" / WEIGHTS).unlink()
    shutil.rmtree(folder.root)
    with pytest.raises(ArtifactError, match="None of the 1 checkpoints in the mirror"):
        mirror.restore(folder)


def test_an_empty_mirror_starts_nothing(tmp_path: Path, mirror: CheckpointMirror) -> None:
    folder = CheckpointFolder(tmp_path / "here", keep=3)
    mirror.restore(folder)
    assert folder.newest() is None


def test_storage_that_is_away_costs_warnings_and_the_next_checkpoint_brings_all(
    tmp_path: Path, mirror: CheckpointMirror, there: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def away(*_: object, **__: object) -> None:
        raise OSError(5, "no route to storage")

    folder = CheckpointFolder(tmp_path / "here", keep=3)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(module, "PAUSES_S", (0.0,))
        patch.setattr(module.fs, "copy_files", away)
        train(folder, mirror, made(1))
    assert "no route to storage" in caplog.text
    assert "is behind: the newest checkpoint of this run" in caplog.text
    assert mirror.missed == 1
    train(folder, mirror, made(2))
    assert mirror.missed == 1
    assert names(there) == ["step-00000001", "step-00000002"]


def test_checkpoints_that_overtake_an_upload_are_not_lost(
    tmp_path: Path, mirror: CheckpointMirror, there: Path
) -> None:
    folder = CheckpointFolder(tmp_path / "here", keep=5)
    writer = CheckpointWriter(folder, mirror)
    for step in range(1, 5):
        writer.save(made(step))
    writer.wait()
    mirror.finish()
    assert names(there) == [f"step-{step:08d}" for step in range(1, 5)]


def test_an_address_that_leads_nowhere_is_named() -> None:
    with pytest.raises(DataError, match=r"nothing://x cannot be opened.*Change training\.mirror"):
        CheckpointMirror("nothing://x")


def test_every_step_tells_how_many_uploads_were_missed(
    job: Callable[..., TrainingJob], mirror: CheckpointMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OSError(5, "no route to storage")

    monkeypatch.setattr(module, "PAUSES_S", ())
    monkeypatch.setattr(module.fs, "copy_files", away)
    alone, made = job("alone", max_steps=2), replace(job("copied", max_steps=2), mirror=mirror)
    run(alone)
    assert all("mirror_missed" not in step for step in alone.reporter.metrics)
    run(made)
    mirror.finish()
    assert [step["mirror_missed"] for step in made.reporter.metrics] == [0, 0]
    run(replace(made, config=made.config.model_copy(update={"max_steps": 3})))
    assert made.reporter.metrics[-1]["mirror_missed"] == 1
