"""What a dataset holds, in numbers: for the inspect job and for the report."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eagleray.corpus.accounting import LengthQuantiles, bucket, bucket_width, length_quantiles
from eagleray.corpus.manifest import Manifest
from eagleray.corpus.prompt import Reject
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import REDO, read_shard
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
    finish_reasons: dict[str, int]
    rejects_by_reason: dict[str, int]
    """Numbers within a reason are written N, so that like reasons count together."""


@dataclass
class DatasetSurvey:
    """One pass over a dataset; keeps counts, and of the samples only their ids."""

    folder: Path
    manifest: Manifest
    damaged: dict[str, str] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    lengths: Counter[int] = field(default_factory=Counter)
    categories: dict[str, Counter[str]] = field(default_factory=dict)
    origins: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0

    def samples(self) -> Iterable[Sample]:
        """Yield the samples of every shard that is whole, counting them; note the other shards."""
        for index in sorted(self.manifest.shards):
            record = self.manifest.shards[index]
            try:
                samples = read_shard(self.folder, record)
            except DataError as error:
                self.damaged[record.file] = str(error).removesuffix(REDO).strip()
                continue
            for sample in samples:
                self._count(sample)
                yield sample

    def summary(self) -> DatasetSummary:
        """The counts, once all samples were drawn."""
        totals: Counter[str] = Counter()
        for counts in self.categories.values():
            totals.update(counts)
        rejects = [reject for rejected in self.manifest.rejects.values() for reject in rejected]
        return DatasetSummary(
            planned_rows=self.manifest.planned_rows,
            answered_prompts=self.manifest.answered_prompts,
            rejected_rows=len(rejects),
            rows=self.lengths.total(),
            planned_shards=self.manifest.planned_shards,
            shards=len(self.manifest.shards),
            damaged_shards=self.damaged,
            size_bytes=sum(record.size_bytes for record in self.manifest.shards.values()),
            tokens=totals["tokens"],
            supervised_tokens=totals["supervised_tokens"],
            supervised_ratio=totals["supervised_tokens"] / max(1, totals["tokens"]),
            duplicate_ids=self.duplicates,
            lengths=length_quantiles(self.lengths) if self.lengths else None,
            length_histogram=length_histogram(self.lengths),
            categories={
                name: CategorySummary.model_validate(self.categories[name])
                for name in sorted(self.categories)
            },
            answer_origins=dict(self.origins),
            finish_reasons=dict(self.finish_reasons),
            rejects_by_reason=count_reasons(rejects),
        )

    def _count(self, sample: Sample) -> None:
        self.duplicates += sample.sample_id in self.ids
        self.ids.add(sample.sample_id)
        self.lengths[len(sample.input_ids)] += 1
        self.origins[sample.answer_origin] += 1
        self.finish_reasons[sample.finish_reason] += 1
        self.categories.setdefault(sample.category, Counter()).update(
            rows=1,
            tokens=len(sample.input_ids),
            supervised_tokens=sample.supervised_tokens(),
            cut_answers=int(sample.finish_reason == "length"),
        )


def summarise_dataset(folder: Path, manifest: Manifest) -> DatasetSummary:
    """Summarise what is published of a dataset."""
    survey = DatasetSurvey(folder, manifest)
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


def count_reasons(rejects: Sequence[Reject]) -> dict[str, int]:
    """Rejects by reason, most frequent first."""
    return dict(Counter(re.sub(r"\d+", "N", reject.reason) for reject in rejects).most_common())
