"""What a dataset holds, in numbers: for the inspect job and for the report."""

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from eagleray.corpus.accounting import LengthQuantiles, bucket, bucket_width, length_quantiles
from eagleray.corpus.manifest import Manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import REDO, read_shard
from eagleray.corpus.storage import Storage
from eagleray.errors import DataError
from eagleray.settings import Settings


class CategorySummary(Settings):
    """The samples of one category."""

    rows: int
    tokens: int
    supervised_tokens: int
    cut_answers: int
    """Answers that ended at the token limit instead of at a stop token."""


class DatasetSummary(Settings):
    """The published shards of a dataset."""

    planned_rows: int
    """Prompts that were to be answered; when the dataset is complete, answered and rejected together."""
    answered_prompts: int
    rejected_rows: int
    rows: int
    """Samples; a prompt may have given several."""
    planned_shards: int
    shards: int
    damaged_shards: dict[str, str]
    """File -> what is wrong. Rows of these shards are not in the other counts."""
    size_bytes: int
    tokens: int
    supervised_tokens: int
    supervised_ratio: float
    """Share of all tokens."""
    duplicate_ids: int
    lengths: LengthQuantiles | None
    length_histogram: dict[str, int]
    """Rows by bucket of length, `low-high` in tokens."""
    categories: dict[str, CategorySummary]
    answer_origins: dict[str, int]
    """Samples by where the ids of their answers come from."""
    mismatched_ratio: float
    """Share of the answered prompts with an answer whose ids may not be those that the target emitted."""
    finish_reasons: dict[str, int]
    rejects_by_reason: dict[str, int]
    """Numbers within a reason are written N, so that like reasons count together."""


@dataclass
class DatasetSurvey:
    """One pass over a dataset; keeps counts, and eight bytes of each id."""

    storage: Storage
    manifest: Manifest
    damaged: dict[str, str] = field(default_factory=dict)
    ids: "array[int]" = field(default_factory=lambda: array("Q"))
    lengths: Counter[int] = field(default_factory=Counter)
    categories: dict[str, Counter[str]] = field(default_factory=dict)
    origins: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of every shard that is whole, counting them; note the other shards."""
        for index in sorted(self.manifest.shards):
            record = self.manifest.shards[index]
            try:
                shard = read_shard(self.storage, record)
            except DataError as error:
                self.damaged[record.file] = str(error).removesuffix(REDO).strip()
                continue
            self.reasons.update(reason_kind(reject.reason) for reject in shard.rejects)
            for sample in shard.samples:
                self._count(sample)
                yield sample

    def summary(self) -> DatasetSummary:
        """The counts, once all samples were drawn."""
        totals: Counter[str] = Counter()
        for counts in self.categories.values():
            totals.update(counts)
        return DatasetSummary(
            planned_rows=self.manifest.planned_rows,
            answered_prompts=self.manifest.answered_prompts,
            rejected_rows=self.manifest.rejected_rows,
            rows=self.lengths.total(),
            planned_shards=self.manifest.planned_shards,
            shards=len(self.manifest.shards),
            damaged_shards=self.damaged,
            size_bytes=sum(record.size_bytes for record in self.manifest.shards.values()),
            tokens=totals["tokens"],
            supervised_tokens=totals["supervised_tokens"],
            supervised_ratio=totals["supervised_tokens"] / max(1, totals["tokens"]),
            duplicate_ids=len(self.ids) - np.unique(np.frombuffer(self.ids, np.uint64)).size,
            lengths=length_quantiles(self.lengths) if self.lengths else None,
            length_histogram=length_histogram(self.lengths),
            categories={
                name: CategorySummary.model_validate(self.categories[name])
                for name in sorted(self.categories)
            },
            answer_origins=dict(self.origins),
            mismatched_ratio=self.manifest.mismatched_prompts / max(1, self.manifest.answered_prompts),
            finish_reasons=dict(self.finish_reasons),
            rejects_by_reason=dict(self.reasons.most_common()),
        )

    def _count(self, sample: Sample) -> None:
        self.ids.append(int.from_bytes(hashlib.blake2b(sample.sample_id.encode(), digest_size=8).digest()))
        self.lengths[len(sample.input_ids)] += 1
        self.origins[sample.answer_origin] += 1
        self.finish_reasons[sample.finish_reason] += 1
        self.categories.setdefault(sample.category, Counter()).update(
            rows=1,
            tokens=len(sample.input_ids),
            supervised_tokens=sample.supervised_tokens(),
            cut_answers=int(sample.finish_reason == "length"),
        )


def summarise_dataset(storage: Storage, manifest: Manifest) -> DatasetSummary:
    """Summarise what is published of a dataset."""
    survey = DatasetSurvey(storage, manifest)
    for _ in survey.samples():
        pass
    return survey.summary()


def length_histogram(lengths: Counter[int]) -> dict[str, int]:
    """Rows by bucket, from the shortest to the longest row; empty buckets in between are listed too."""
    if not lengths:
        return {}
    width = bucket_width(max(lengths))
    names = dict.fromkeys(bucket(length, width) for length in range(min(lengths), max(lengths) + 1))
    histogram = dict.fromkeys(names, 0)
    for length, rows in lengths.items():
        histogram[bucket(length, width)] += rows
    return histogram


def reason_kind(reason: str) -> str:
    """The reason with its numbers written N, so that like reasons count together."""
    return re.sub(r"\d+", "N", reason)
