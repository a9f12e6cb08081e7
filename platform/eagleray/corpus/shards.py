"""One shard: a Parquet file of samples, published atomically and read only when its hash agrees."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagleray.corpus.files import file_sha256, write_atomically
from eagleray.corpus.sample import SHARD_SCHEMA, Sample
from eagleray.errors import DataError
from eagleray.settings import Settings


class ShardRecord(Settings):
    """What the manifest says of one published shard."""

    file: str
    rows: int
    size_bytes: int
    sha256: str
    supervised_tokens: int
    truncated_rows: int
    """Answers that ended at the token limit instead of at a stop token."""


def shard_name(index: int) -> str:
    """File name of the shard with this index."""
    return f"shard-{index:06d}.parquet"


def write_shard(folder: Path, index: int, samples: Sequence[Sample]) -> ShardRecord:
    """Write samples to `folder/shard-<index>.parquet`, replacing what an interrupted run may have left."""
    path = folder / shard_name(index)
    columns = {name: [getattr(sample, name) for sample in samples] for name in SHARD_SCHEMA.names}
    table = pa.Table.from_pydict(columns, schema=SHARD_SCHEMA)
    write_atomically(path, lambda aside: pq.write_table(table, aside, compression="zstd"))
    return ShardRecord(
        file=path.name,
        rows=len(samples),
        size_bytes=path.stat().st_size,
        sha256=file_sha256(path),
        supervised_tokens=sum(sample.supervised_tokens() for sample in samples),
        truncated_rows=sum(sample.finish_reason == "length" for sample in samples),
    )


def read_shard(folder: Path, record: ShardRecord) -> list[Sample]:
    """Read a shard after checking its bytes.

    Raises:
        DataError: The file is missing, its hash or row count disagrees with the manifest, or its
            columns are not those of this version.
    """
    path = folder / record.file
    if not path.is_file():
        raise DataError(f"Shard {path} is in the manifest but not on disk. {_REDO}")
    seen = file_sha256(path)
    if seen != record.sha256:
        raise DataError(
            f"Shard {path} has SHA-256 {seen[:16]}, the manifest says {record.sha256[:16]}. {_REDO}"
        )
    table = pq.read_table(path)
    if table.schema.names != SHARD_SCHEMA.names:
        raise DataError(
            f"Shard {path} has columns {table.schema.names}; expected {SHARD_SCHEMA.names}. {_REDO}"
        )
    if table.num_rows != record.rows:
        raise DataError(f"Shard {path} has {table.num_rows} rows, the manifest says {record.rows}. {_REDO}")
    return [_to_sample(row) for row in table.to_pylist()]


_REDO = "Run the distil job with --repair: it makes such shards again and keeps the others."


def _to_sample(row: dict[str, Any]) -> Sample:
    row["input_ids"] = tuple(row["input_ids"])
    row["supervised"] = tuple((start, end) for start, end in row["supervised"])
    return Sample(**row)
