"""One training sequence: the ids an engine emitted, and which of them are supervised."""

from dataclasses import dataclass

import pyarrow as pa

SHARD_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("supervised", pa.list_(pa.list_(pa.int32(), 2)), nullable=False),
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        pa.field("answer_tokens", pa.int32(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
    ]
)
"""Every shard has exactly these columns, so a column that happens to be empty never changes type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A prompt and the answer the target gave, as ids."""

    sample_id: str
    """Hash of prompt, target, template and sampling settings."""
    input_ids: tuple[int, ...]
    supervised: tuple[tuple[int, int], ...]
    """Half-open index spans of the tokens the target emitted, end-of-turn token included."""
    prompt_tokens: int
    answer_tokens: int
    finish_reason: str
    category: str
    source: str

    def supervised_tokens(self, max_length: int | None = None) -> int:
        """Supervised tokens left when the sequence is cut to `max_length` (None: not cut)."""
        limit = len(self.input_ids) if max_length is None else max_length
        return sum(max(0, min(end, limit) - start) for start, end in self.supervised)
