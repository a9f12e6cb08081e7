"""A half-written checkpoint is never picked, and never replaced by a silent fresh start."""

import errno
import logging
from pathlib import Path

import pytest
import torch

from eagleray.errors import ArtifactError
from eagleray.training import checkpoint
from eagleray.training.checkpoint import Checkpoint, CheckpointFolder, load_checkpoint
from eagleray.training.state import TrainingState


def save(folder: CheckpointFolder, step: int) -> Path:
    return folder.save(
        Checkpoint(
            weights={"w": torch.full((3,), float(step))},
            optimizer={"w": {"momentum": torch.ones(2)}},
            rng=torch.get_rng_state(),
            state=TrainingState(fingerprint="f", step=step, supervised_tokens=9, loss=1.5),
        )
    )


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=5)
    save(folder, 1)
    save(folder, 2)
    return folder


def test_what_was_saved_comes_back(folder: CheckpointFolder) -> None:
    newest = folder.newest()
    assert newest is not None
    loaded = load_checkpoint(newest)
    assert loaded.weights["w"].tolist() == [2, 2, 2]
    assert loaded.optimizer["w"]["momentum"].tolist() == [1, 1]
    assert loaded.state == TrainingState(fingerprint="f", step=2, supervised_tokens=9, loss=1.5)


@pytest.mark.parametrize("name", ["drafter.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "deleted"])
def test_a_damaged_file_sends_the_run_to_the_checkpoint_before(
    folder: CheckpointFolder, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    path = folder.root / "step-00000002" / name
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: -1 if damage == "cut" else 0])
    with caplog.at_level(logging.WARNING):
        assert folder.newest() == folder.root / "step-00000001"
    assert "step-00000002" in caplog.text
    assert name in caplog.text


@pytest.mark.parametrize("content", [None, "", '{"sha256"'])
def test_a_checkpoint_without_its_marker_is_passed_over(
    folder: CheckpointFolder, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    marker = folder.root / "step-00000002" / "complete.json"
    marker.unlink()
    if content is not None:
        marker.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert folder.newest() == folder.root / "step-00000001"
    assert "step-00000002" in caplog.text


def test_a_full_disk_is_named_and_leaves_the_checkpoint_before_usable(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", fill)
    with pytest.raises(ArtifactError, match=r"step-00000003 could not be written: .*No space left.* GiB"):
        save(folder, 3)
    assert folder.newest() == folder.root / "step-00000002"
    assert sorted(path.name for path in folder.root.iterdir()) == ["step-00000001", "step-00000002"]


def test_what_a_killed_writer_left_is_cleaned_up_by_the_next(folder: CheckpointFolder) -> None:
    (folder.root / ".step-00000003.99").mkdir()
    save(folder, 3)
    assert not list(folder.root.glob(".step-*"))


def test_an_empty_folder_and_one_still_being_written_are_ignored(folder: CheckpointFolder) -> None:
    (folder.root / "step-00000003").mkdir()
    (folder.root / ".step-00000004.99").mkdir()
    assert folder.newest() == folder.root / "step-00000002"


def test_no_whole_checkpoint_is_an_error_and_no_fresh_start(folder: CheckpointFolder) -> None:
    for path in folder.root.glob("step-*/complete.json"):
        path.unlink()
    with pytest.raises(ArtifactError, match="None of the 2 checkpoints"):
        folder.newest()


def test_a_run_that_never_saved_starts_fresh(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "nothing", keep=1).newest() is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (1, 2, 3):
        save(folder, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_loading_a_damaged_checkpoint_by_name_is_refused(folder: CheckpointFolder) -> None:
    (folder.root / "step-00000001" / "state.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"state.json \(2 bytes\) does not match"):
        load_checkpoint(folder.root / "step-00000001")
