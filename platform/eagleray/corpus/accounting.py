"""What cutting sequences to a length costs: supervised tokens kept, clipped and lost.

Pure arithmetic over lengths and spans, one row at a time, so it accounts for any number of rows before
distilling (prompt lengths and the answer limit) and after it (samples).

A drafter drafts from an anchor, a supervised token, and learns from the supervised tokens after it. So a
row trains only if at least one anchor is left within the cut: two supervised tokens in a row.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil

from eagleray.corpus.sample import Sample
from eagleray.corpus.windows import LongSamples, Spans, Window, cut_windows
from eagleray.settings import Settings

NO_SUPERVISED, NO_ANCHOR = "no supervised tokens", "no supervised token after another"
KEEPING_PERCENT = (95, 99, 100)
MAX_BUCKETS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """All that truncation asks of a row."""

    category: str
    tokens: int
    """Prompt and answer together."""
    supervised: Spans


class Tally(Settings):
    """Rows and supervised tokens of a group; every one of them is in exactly one of the counts."""

    whole_rows: int = 0
    """Not longer than the cut."""
    clipped_rows: int = 0
    """Longer, and still able to train."""
    lost_rows: int = 0
    """Without an anchor within the cut: never trained on."""
    kept_tokens: int = 0
    """Supervised tokens that are trained on."""
    clipped_tokens: int = 0
    """Supervised tokens beyond the cut, of rows that train."""
    lost_tokens: int = 0
    """Supervised tokens of rows that do not."""

    @property
    def rows(self) -> int:
        """All rows of the group."""
        return self.whole_rows + self.clipped_rows + self.lost_rows

    @property
    def kept_ratio(self) -> float:
        """Share of the supervised tokens that is trained on; 0 when there are none."""
        return self.kept_tokens / max(1, self.kept_tokens + self.clipped_tokens + self.lost_tokens)


class LengthQuantiles(Settings):
    """Row lengths in tokens, nearest rank: p95 is the least length that 95 % of the rows do not exceed."""

    p50: int
    p95: int
    p99: int
    longest: int


class TruncationAccount(Settings):
    """The account of one dataset at one length."""

    max_length: int | None
    """Where rows were cut; None if none was."""
    long_samples: LongSamples
    """What became of longer rows."""
    total: Tally
    kept_ratio: float
    by_category: dict[str, Tally]
    by_length: dict[str, Tally]
    """By bucket of whole length, `low-high` in tokens, both inclusive."""
    lost_rows_by_reason: dict[str, int]
    anchors: int
    """Positions within the cut that a draft can start from."""
    lengths: LengthQuantiles
    max_length_keeping: dict[str, int]
    """Percent -> least cut that keeps this part of all supervised tokens that any cut could keep."""


def sample_extent(sample: Sample) -> Extent:
    """The extent of a distilled sample."""
    return Extent(category=sample.category, tokens=len(sample.input_ids), supervised=sample.supervised)


def supervised_within(spans: Spans, max_length: int) -> int:
    """Supervised tokens left by a cut."""
    return sum(max(0, min(end, max_length) - start) for start, end in spans)


def account(
    rows: Iterable[Extent], max_length: int | None, long_samples: LongSamples = "clip"
) -> TruncationAccount | None:
    """Account for rows cut to `max_length`; None if there are no rows."""
    ledger = TruncationLedger(max_length, long_samples)
    for row in rows:
        ledger.enter(row)
    return ledger.close()


def row_counts(row: Extent, max_length: int, windows: Sequence[Window]) -> dict[str, int]:
    """What a single row, trained on in these windows, adds to a `Tally`."""
    total = supervised_within(row.supervised, row.tokens)
    if not windows:
        return {"lost_rows": 1, "lost_tokens": total}
    kept = sum(window.supervised_tokens for window in windows)
    rows = "clipped_rows" if row.tokens > max_length else "whole_rows"
    return {rows: 1, "kept_tokens": kept, "clipped_tokens": total - kept}


def length_quantiles(lengths: Mapping[int, int]) -> LengthQuantiles:
    """Quantiles of a count of rows by length, at least one row."""
    ordered = sorted(lengths)
    cumulative = list(accumulate(lengths[length] for length in ordered))

    def quantile(share: float) -> int:
        rank = ceil(share * cumulative[-1])
        return next(length for length, reached in zip(ordered, cumulative, strict=True) if reached >= rank)

    return LengthQuantiles(p50=quantile(0.5), p95=quantile(0.95), p99=quantile(0.99), longest=ordered[-1])


def bucket_width(longest: int) -> int:
    """The least power of two, from 16 on, that covers 1..longest in at most `MAX_BUCKETS` buckets."""
    width = 16
    while width * MAX_BUCKETS < longest:
        width *= 2
    return width


def bucket(length: int, width: int) -> str:
    """Name of the bucket that holds a length of at least 1."""
    low = (length - 1) // width * width + 1
    return f"{low}-{low + width - 1}"


class _Gains:
    """Supervised tokens that one more token of length lets in, as the differences from length to length."""

    def __init__(self) -> None:
        self._slope: Counter[int] = Counter()
        self._jump: Counter[int] = Counter()

    def enter(self, spans: Spans) -> None:
        """Take a row: nothing until it has an anchor, then all so far at once, then token by token."""
        first = min((start + 2 for start, end in spans if end - start >= 2), default=None)
        if first is None:
            return
        self._jump[first] += supervised_within(spans, first)
        for start, end in spans:
            if end > first:
                self._slope[max(start, first) + 1] += 1
                self._slope[end + 1] -= 1

    def lengths_keeping(self, percents: Sequence[int]) -> dict[str, int]:
        """The least length that lets in each percentage of all; empty when nothing ever is."""
        if not self._jump:
            return {}
        lengths = range(max(self._jump.keys() | self._slope.keys()) + 1)
        slopes = accumulate(self._slope[length] for length in lengths)
        gains = (slope + self._jump[length] for length, slope in zip(lengths, slopes, strict=True))
        kept_by_length = list(accumulate(gains))
        wanted = {percent: ceil(kept_by_length[-1] * percent / 100) for percent in percents}
        return {str(percent): bisect_left(kept_by_length, tokens) for percent, tokens in wanted.items()}


@dataclass
class TruncationLedger:
    """Sums over the rows entered so far; their memory does not grow with the number of rows."""

    max_length: int | None
    """Where rows are cut; None cuts none."""
    long_samples: LongSamples = "clip"
    """What becomes of longer rows."""
    lengths: Counter[int] = field(default_factory=Counter)
    by_length: dict[int, Counter[str]] = field(default_factory=dict)
    by_category: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    anchors: int = 0
    gains: _Gains = field(default_factory=_Gains)

    def enter(self, row: Extent) -> None:
        """Add a row."""
        limit = row.tokens if self.max_length is None else self.max_length
        windows = cut_windows(row.tokens, row.supervised, limit, self.long_samples)
        counts = row_counts(row, limit, windows)
        self.lengths[row.tokens] += 1
        self.by_length.setdefault(row.tokens, Counter()).update(counts)
        self.by_category.setdefault(row.category, Counter()).update(counts)
        self.anchors += sum(window.anchors for window in windows)
        if "lost_rows" in counts:
            left = supervised_within(row.supervised, limit)
            self.reasons[NO_ANCHOR if left else NO_SUPERVISED] += 1
        self.gains.enter(row.supervised)

    def close(self) -> TruncationAccount | None:
        """The account of all rows; None if there were none."""
        if not self.lengths:
            return None
        width = bucket_width(max(self.lengths))
        buckets: dict[str, Counter[str]] = {}
        for length in sorted(self.by_length):
            buckets.setdefault(bucket(length, width), Counter()).update(self.by_length[length])
        total: Counter[str] = Counter()
        for counts in self.by_category.values():
            total.update(counts)
        return TruncationAccount(
            max_length=self.max_length,
            long_samples=self.long_samples,
            total=Tally(**total),
            kept_ratio=Tally(**total).kept_ratio,
            by_category={name: Tally(**self.by_category[name]) for name in sorted(self.by_category)},
            by_length={name: Tally(**counts) for name, counts in buckets.items()},
            lost_rows_by_reason=dict(self.reasons),
            anchors=self.anchors,
            lengths=length_quantiles(self.lengths),
            max_length_keeping=self.gains.lengths_keeping(KEEPING_PERCENT),
        )
