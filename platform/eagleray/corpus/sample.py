"""One training sequence: ids as the target read and wrote them, and which of them are supervised."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from eagleray.corpus.prompt import AnswerOrigin

SHARD_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("supervised", pa.list_(pa.list_(pa.int32(), 2)), nullable=False),
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        pa.field("answer_tokens", pa.int32(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("answer_origin", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
    ]
)
"""Every shard has exactly these columns, so a column that happens to be empty never changes type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A prompt and its answers, as ids."""

    sample_id: str
    """Hash of prompt, target, template and sampling settings, and of the turn it ends with."""
    part: int = 0
    """Rank among the samples of one prompt; a conversation that one sequence cannot hold gives several."""
    input_ids: tuple[int, ...]
    supervised: tuple[tuple[int, int], ...]
    """Half-open index spans of the answer tokens to learn, end-of-turn token included."""
    prompt_tokens: int
    """Tokens before the first answer."""
    answer_tokens: int
    """Tokens of all answers, whether supervised or not."""
    finish_reason: str
    """How the last answer ended: `stop`, or `length` where a token limit cut it."""
    answer_origin: AnswerOrigin
    """`target` if the target emitted the answers; `given` if the input did, which is off-policy."""
    category: str
    source: str

    def supervised_tokens(self, max_length: int | None = None) -> int:
        """Supervised tokens left when the sequence is cut to `max_length` (None: not cut)."""
        limit = len(self.input_ids) if max_length is None else max_length
        return sum(max(0, min(end, limit) - start) for start, end in self.supervised)


def to_columns(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """The columns of `SHARD_SCHEMA`."""
    return {name: [getattr(sample, name) for sample in samples] for name in SHARD_SCHEMA.names}


def to_sample(row: dict[str, Any]) -> Sample:
    """A sample from a row of these columns."""
    row["input_ids"] = tuple(row["input_ids"])
    row["supervised"] = tuple((start, end) for start, end in row["supervised"])
    return Sample(**row)
