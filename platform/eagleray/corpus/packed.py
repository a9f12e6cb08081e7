"""Samples in one uncompressed Arrow file, mapped into memory: any of them at once, none of them loaded.

Training asks for samples in a random order, and shards can only be read whole. The processes of a machine
share the pages of the file, and the kernel drops what nobody uses.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TypeVar, overload

import pyarrow as pa

from eagleray.corpus.sample import SHARD_SCHEMA, Sample, to_columns, to_sample
from eagleray.files import replacing

BATCH_ROWS = 256
"""Samples that are held while packing."""

T = TypeVar("T")


class LazySequence(Sequence[T]):
    """A sequence whose items are made when they are asked for."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self.make(at) for at in range(*index.indices(len(self)))]
        return self.make(range(len(self))[index])

    def make(self, index: int) -> T:
        """The item at `index`, which is from 0 to the length."""
        raise NotImplementedError


class Chosen(LazySequence[T]):
    """Some items of a sequence, by their indices."""

    def __init__(self, items: Sequence[T], indices: Sequence[int]):
        self._items = items
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def make(self, index: int) -> T:
        """Ask the sequence."""
        return self._items[self._indices[index]]


class PackedSamples(LazySequence[Sample]):
    """The samples of a packed file."""

    def __init__(self, path: Path):
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self._batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def make(self, index: int) -> Sample:
        """Read one."""
        at = bisect_right(self._ends, index)
        row = index - (self._ends[at - 1] if at else 0)
        return to_sample(self._batches[at].slice(row, 1).to_pylist()[0])


def pack(samples: Iterable[Sample], path: Path) -> None:
    """Write a packed file, which appears whole or not at all."""
    stream = iter(samples)
    with (
        replacing(path) as aside,
        pa.OSFile(str(aside), "wb") as file,
        pa.ipc.new_file(file, SHARD_SCHEMA) as writer,
    ):
        while rows := list(islice(stream, BATCH_ROWS)):
            writer.write(pa.RecordBatch.from_pydict(to_columns(rows), schema=SHARD_SCHEMA))
