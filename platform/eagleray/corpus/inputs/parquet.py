"""Parquet tables: one row a conversation, in nested columns or in JSON text.

Rows go through plain Python values, one batch at a time, so a column that is null throughout one file
and a list in the next needs no common schema.
"""

from collections.abc import Iterator
from io import BufferedReader
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagleray.corpus.inputs.base import BadRow, Row
from eagleray.errors import DataError

ROWS_PER_BATCH = 64


class Parquet:
    """Rows of a Parquet file."""

    suffixes: tuple[str, ...] = (".parquet", ".pq")
    seekable = True

    def rows(self, stream: BufferedReader) -> Iterator[tuple[int, Row | BadRow]]:
        number = 0
        try:
            for batch in pq.ParquetFile(stream).iter_batches(ROWS_PER_BATCH):
                for row in _plain_rows(batch):
                    number += 1
                    yield number, row
        except pa.ArrowException as error:
            raise DataError(f"The Parquet file is damaged after row {number}: {error}") from None


def _plain_rows(batch: pa.RecordBatch) -> Iterator[Row | BadRow]:
    for index in range(batch.num_rows):
        try:
            (row,) = batch.slice(index, 1).to_pylist(maps_as_pydicts="lossy")
        except UnicodeDecodeError as error:
            yield BadRow(reason=f"not UTF-8 (byte {error.start})")
            continue
        yield _without_nulls(row)


def _without_nulls(value: Any) -> Any:
    """Drop null entries of objects: a column of objects has every key of every row, null where absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value
