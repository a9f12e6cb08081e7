"""One shard: a Parquet file of samples, published atomically and read only when its hash agrees."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagleray.corpus.sample import SHARD_SCHEMA, Sample
from eagleray.errors import DataError
from eagleray.files import write_atomically
from eagleray.settings import Settings


class ShardRecord(Settings):
    """What the manifest says of one published shard."""

    file: str
    rows: int
    answered_prompts: int
    """Prompts that gave the rows; some give several."""
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
    content = path.read_bytes()
    return ShardRecord(
        file=path.name,
        rows=len(samples),
        answered_prompts=sum(sample.part == 0 for sample in samples),
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        supervised_tokens=sum(sample.supervised_tokens() for sample in samples),
        truncated_rows=sum(sample.finish_reason == "length" for sample in samples),
    )


def read_shard(folder: Path, record: ShardRecord) -> list[Sample]:
    """Read a shard. What is parsed are the very bytes whose hash was checked.

    Raises:
        DataError: The file is missing, its hash or row count disagrees with the manifest, or its
            columns are not those of this version.
    """
    path = folder / record.file
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"Shard {path} is in the manifest but not on disk. {REDO}") from None
    seen = hashlib.sha256(content).hexdigest()
    if seen != record.sha256:
        raise DataError(
            f"Shard {path} has SHA-256 {seen[:16]}, the manifest says {record.sha256[:16]}. {REDO}"
        )
    table = pq.read_table(pa.BufferReader(content))
    if not table.schema.equals(SHARD_SCHEMA):
        raise DataError(
            f"Shard {path} has the columns {_spell(table.schema)}; expected {_spell(SHARD_SCHEMA)}. {REDO}"
        )
    if table.num_rows != record.rows:
        raise DataError(f"Shard {path} has {table.num_rows} rows, the manifest says {record.rows}. {REDO}")
    return [_to_sample(row) for row in table.to_pylist()]


REDO = "Run the distil job with --repair: it sets such shards aside, makes them again and keeps the others."


def _spell(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _to_sample(row: dict[str, Any]) -> Sample:
    row["input_ids"] = tuple(row["input_ids"])
    row["supervised"] = tuple((start, end) for start, end in row["supervised"])
    return Sample(**row)
