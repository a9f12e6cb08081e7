"""Checkpoints written beside the training, which goes on meanwhile."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from eagleray.training.checkpoint import Checkpoint, CheckpointFolder
from eagleray.training.mirror import CheckpointMirror


class CheckpointWriter:
    """Writes one checkpoint at a time in a thread.

    A run that dies meanwhile goes on from the checkpoint before: what is not written whole is never used.

    Args:
        mirror: Gets a copy of each.
    """

    def __init__(self, folder: CheckpointFolder, mirror: CheckpointMirror | None = None):
        self._folder = folder
        self._mirror = mirror
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[Path] | None = None

    def save(self, checkpoint: Checkpoint) -> Path:
        """Begin to write, after the one before; returns where. The tensors must be the checkpoint's own.

        Raises:
            ArtifactError: The one before could not be written.
        """
        self.wait()
        self._pending = self._thread.submit(self._write, checkpoint)
        return self._folder.of_step(checkpoint.state.step)

    def wait(self) -> None:
        """Return when nothing is being written.

        Raises:
            ArtifactError: It could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, checkpoint: Checkpoint) -> Path:
        place = self._folder.save(checkpoint)
        if self._mirror is not None:
            self._mirror.upload(place)
        return place
