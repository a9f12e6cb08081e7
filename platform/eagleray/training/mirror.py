"""Checkpoints copied to a storage address beside the training, for the day its machines are gone.

A checkpoint there is whole or not used: its marker is uploaded last, and the hashes in it are checked after
a download. Files are streamed, as a large one does not fit into memory once more. What the run has pruned is
pruned there too. An upload that fails is tried again, then left to the next checkpoint: storage that is away
costs a warning and never the training.
"""

import logging
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from eagleray.corpus.storage import ATOMIC_STORES, open_filesystem
from eagleray.errors import ArtifactError
from eagleray.training.checkpoint import MARKER, STATE, CheckpointFolder, find_defect
from eagleray.training.state import TrainingState

PAUSES_S = (1.0, 5.0, 25.0)
"""Before an upload that failed is tried again."""

logger = logging.getLogger(__name__)


class CheckpointMirror:
    """The copies of one run's checkpoints.

    Args:
        address: A folder as pyarrow spells it, such as `s3://bucket/run/eagle3`.

    Raises:
        DataError: The address is not one that pyarrow understands, or its store cannot be reached.
    """

    def __init__(self, address: str):
        self._filesystem, self._base = open_filesystem(address, "training.mirror")
        self.address = address
        self.missed = 0
        """Uploads given up so far."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-mirror")
        self._wanted: Path | None = None
        self._uploaded: Path | None = None
        self._pending: Future[None] | None = None

    def upload(self, place: Path) -> None:
        """Begin to copy a whole checkpoint. One that still waits for its turn then is left out."""
        self._wanted = place
        self._pending = self._thread.submit(self._upload, place)

    def finish(self) -> None:
        """Wait for the newest checkpoint to be there; a warning says if it is not."""
        if self._pending is not None:
            self._pending.result()
        if self._uploaded != self._wanted:
            logger.warning(
                "Mirror %s is behind: the newest checkpoint of this run, %s, is not there, %s is. Copy the "
                "folder there before this machine goes.",
                self.address,
                self._wanted,
                self._uploaded.name if self._uploaded else "none",
            )

    def restore(self, folder: CheckpointFolder) -> None:
        """Where a run has no checkpoint of its own, take the newest whole one, and the best it knows.

        Raises:
            ArtifactError: The storage cannot be read, or there are checkpoints and none is whole. A run that
                began from nothing instead would replace what is there.
        """
        if folder.newest() is not None:
            return
        try:
            steps = self._steps()
            found = any(self._take(name, steps, folder) for name in reversed(steps))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ArtifactError(
                f"Mirror {self.address} cannot be read: {error}. Correct training.mirror or what the address "
                "needs; without it the run starts from nothing."
            ) from error
        if steps and not found:
            raise ArtifactError(
                f"None of the {len(steps)} checkpoints in the mirror {self.address} is whole. Delete them to "
                "start this run from nothing."
            )

    def _take(self, name: str, steps: list[str], folder: CheckpointFolder) -> bool:
        """Download a checkpoint and the best one that it knows; False if one of them is not whole."""
        best_step = self._state(name).best_step
        best = name if best_step is None else folder.of_step(best_step).name
        names = list(dict.fromkeys([best, name]))
        defects = [f"{one} is missing" for one in names if one not in steps]
        if not defects:
            folder.take_over(names, self._download)
            defects = [f"{one}: {why}" for one in names if (why := find_defect(folder.root / one))]
        if not defects:
            logger.info("This run goes on from checkpoint %s of the mirror %s.", name, self.address)
            return True
        logger.warning("Checkpoint %s of the mirror %s is passed over: %s.", name, self.address, defects)
        for one in names:
            shutil.rmtree(folder.root / one, ignore_errors=True)
        return False

    def _upload(self, place: Path) -> None:
        for pause_s in (*PAUSES_S, None):
            if place != self._wanted:
                return  # a newer one waits, and takes along what this one lacks
            try:
                self._synchronise(place.parent)
                self._uploaded = place
                return
            except (OSError, pa.ArrowException) as error:
                if pause_s is None:
                    self.missed += 1
                    logger.warning(
                        "Checkpoint %s did not reach the mirror %s: %s", place, self.address, error
                    )
                else:
                    time.sleep(pause_s)

    def _synchronise(self, root: Path) -> None:
        """Copy what is missing here, the newest last, and delete what the run has deleted."""
        here = CheckpointFolder(root, keep=1).whole()
        there = self._steps()
        for place in here:
            if place.name not in there:
                self._copy(place)
        for name in set(there) - {place.name for place in here}:
            # Without its marker it is none, whatever becomes of the rest.
            self._filesystem.delete_file(f"{self._base}/{name}/{MARKER}")
            self._filesystem.delete_dir(f"{self._base}/{name}")

    def _copy(self, place: Path) -> None:
        there = f"{self._base}/{place.name}"
        if self._filesystem.type_name not in ATOMIC_STORES:
            self._filesystem.create_dir(there, recursive=True)
        for file in sorted(place.iterdir(), key=lambda file: file.name == MARKER):
            fs.copy_files(
                str(file),
                f"{there}/{file.name}",
                source_filesystem=fs.LocalFileSystem(),
                destination_filesystem=self._filesystem,
            )

    def _steps(self) -> list[str]:
        """Names of the checkpoints with a marker, the oldest first."""
        found = self._filesystem.get_file_info(fs.FileSelector(self._base, allow_not_found=True))
        names = sorted(entry.base_name for entry in found if entry.base_name.startswith("step-"))
        markers = self._filesystem.get_file_info([f"{self._base}/{name}/{MARKER}" for name in names])
        return [name for name, marker in zip(names, markers, strict=True) if marker.is_file]

    def _state(self, name: str) -> TrainingState:
        with self._filesystem.open_input_stream(f"{self._base}/{name}/{STATE}") as stream:
            return TrainingState.model_validate_json(stream.read())

    def _download(self, name: str, aside: Path) -> None:
        aside.mkdir(parents=True)
        fs.copy_files(
            f"{self._base}/{name}",
            str(aside),
            source_filesystem=self._filesystem,
            destination_filesystem=fs.LocalFileSystem(),
        )
