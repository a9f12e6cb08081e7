"""One shard: a Parquet file of samples and rejects, published whole and read only when its hash agrees."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from eagleray.corpus.prompt import Reject
from eagleray.corpus.sample import SHARD_SCHEMA, Sample, to_columns, to_sample
from eagleray.corpus.storage import Storage
from eagleray.errors import DataError
from eagleray.settings import Settings

_REJECTS = b"eagleray.rejects"
"""Entry of the Parquet metadata that holds the rejects: they share the file, its hash and its instant."""


class ShardRecord(Settings):
    """What the manifest says of one published shard."""

    file: str
    rows: int
    answered_prompts: int
    """Prompts that gave the rows; some give several."""
    rejected_prompts: int
    """Prompts that gave none."""
    mismatched_prompts: int
    """Prompts with an answer whose ids are not certainly those that the target emitted."""
    size_bytes: int
    sha256: str
    answer_tokens: int
    """Tokens of all answers, whether supervised or not."""
    supervised_tokens: int
    truncated_rows: int
    """Answers that ended at the token limit instead of at a stop token."""

    @property
    def prompts(self) -> int:
        """Prompts of the shard."""
        return self.answered_prompts + self.rejected_prompts


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The content of a shard."""

    samples: tuple[Sample, ...]
    rejects: tuple[Reject, ...]
    """Prompts of the shard that gave no sample."""


def shard_name(index: int) -> str:
    """File name of the shard with this index."""
    return f"shard-{index:06d}.parquet"


def write_shard(
    storage: Storage, index: int, samples: Sequence[Sample], rejects: Sequence[Reject] = ()
) -> ShardRecord:
    """Write `shard-<index>.parquet`, replacing what an interrupted run may have left."""
    table = pa.Table.from_pydict(to_columns(samples), schema=SHARD_SCHEMA)
    spelled = json.dumps([asdict(reject) for reject in rejects], ensure_ascii=False)
    stream = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({_REJECTS: spelled}), stream, compression="zstd")
    content = stream.getvalue().to_pybytes()
    storage.write(shard_name(index), content)
    return ShardRecord(
        file=shard_name(index),
        rows=len(samples),
        answered_prompts=sum(sample.part == 0 for sample in samples),
        rejected_prompts=len(rejects),
        mismatched_prompts=_mismatched_prompts(samples),
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        answer_tokens=sum(sample.answer_tokens for sample in samples),
        supervised_tokens=sum(sample.supervised_tokens() for sample in samples),
        truncated_rows=sum(sample.finish_reason == "length" for sample in samples),
    )


def _mismatched_prompts(samples: Sequence[Sample]) -> int:
    prompts = accumulate(sample.part == 0 for sample in samples)
    pairs = zip(prompts, samples, strict=True)
    return len({prompt for prompt, sample in pairs if sample.answer_origin == "mismatched"})


def read_shard(storage: Storage, record: ShardRecord) -> Shard:
    """Read a shard. What is parsed are the very bytes whose hash was checked.

    Raises:
        DataError: The file is missing, its hash or row count disagrees with the manifest, or its
            columns are not those of this version.
    """
    path = storage.locate(record.file)
    try:
        content = storage.read(record.file)
    except FileNotFoundError:
        raise DataError(f"Shard {path} is in the manifest but not on disk. {REDO}") from None
    seen = hashlib.sha256(content).hexdigest()
    if seen != record.sha256:
        raise DataError(
            f"Shard {path} has SHA-256 {seen[:16]}, the manifest says {record.sha256[:16]}. {REDO}"
        )
    table = pq.read_table(pa.BufferReader(content))
    metadata = table.schema.metadata or {}
    if not table.schema.equals(SHARD_SCHEMA) or _REJECTS not in metadata:
        raise DataError(
            f"Shard {path} has the columns {_spell(table.schema)}; expected {_spell(SHARD_SCHEMA)}, and the "
            f"rejects beside them. {REDO}"
        )
    if table.num_rows != record.rows:
        raise DataError(f"Shard {path} has {table.num_rows} rows, the manifest says {record.rows}. {REDO}")
    return Shard(
        samples=tuple(to_sample(row) for row in table.to_pylist()),
        rejects=tuple(Reject(**reject) for reject in json.loads(metadata[_REJECTS])),
    )


REDO = "Run the distil job with --repair: it sets such shards aside, makes them again and keeps the others."


def _spell(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
