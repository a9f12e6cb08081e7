"""The sink that writes event files for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

FLUSH_S = 5


class TensorBoardLog:
    """Curves of one training. What a run that was killed had written beyond its checkpoint is struck out."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """Add the figures of a step; names with a slash share a section."""
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder), purge_step=step, flush_secs=FLUSH_S)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is buffered."""
        if self._writer is not None:
            self._writer.close()
