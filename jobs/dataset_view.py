"""A dataset on a terminal."""

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.filesize import decimal
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from eagleray.corpus.accounting import TruncationAccount
from eagleray.corpus.inspection import Inspection, segments
from eagleray.corpus.sample import Sample
from eagleray.corpus.summary import DatasetSummary

BAR_COLUMNS = 40
PLAIN_MARKS = ("[[", "]]")
"""Around supervised text where there are no colours."""


def show(folder: str, found: Inspection, decode: Callable[[Sample, int, int], str], out: Console) -> None:
    """Print everything an inspection found."""
    _show_counts(folder, found, out)
    _show_histogram(found.summary, out)
    _show_categories(found.summary, out)
    if found.summary.rejects_by_reason:
        _show_counter("Rejects by reason", "reason", found.summary.rejects_by_reason, out)
    for name, account in found.truncation.items():
        _show_truncation(name, account, out)
    for sample in found.samples:
        _show_sample(sample, decode, out)


def _show_counts(folder: str, found: Inspection, out: Console) -> None:
    summary = found.summary
    state = "complete" if found.manifest.complete else "unfinished"
    out.print(f"{folder}: {state}, {summary.shards:,} of {summary.planned_shards:,} shards", markup=False)
    out.print(
        f"{summary.planned_rows:,} prompts: {summary.answered_prompts:,} answered, "
        f"{summary.rejected_rows:,} rejected; {summary.rows:,} samples, "
        f"{summary.duplicate_ids:,} ids twice; {len(summary.damaged_shards):,} shards damaged; "
        f"{decimal(summary.size_bytes)}"
    )
    out.print(
        f"{summary.tokens:,} tokens, {summary.supervised_tokens:,} supervised "
        f"({summary.supervised_ratio:.1%}); answers by {_counts(summary.answer_origins)}; "
        f"ended by {_counts(summary.finish_reasons)}"
    )
    if summary.mismatched_ratio:
        out.print(
            f"{summary.mismatched_ratio:.2%} of the answered prompts have ids that no server confirmed",
            style="yellow",
        )
    for file, problem in summary.damaged_shards.items():
        out.print(f"damaged {file}: {problem}", markup=False, style="red")


def _show_histogram(summary: DatasetSummary, out: Console) -> None:
    if summary.lengths is None:
        return
    lengths = summary.lengths
    table = Table(
        title=f"Lengths in tokens: median {lengths.p50}, p95 {lengths.p95}, p99 {lengths.p99}, "
        f"longest {lengths.longest}"
    )
    for heading in ("tokens", "rows", ""):
        table.add_column(heading, justify="right" if heading else "left")
    fullest = max(summary.length_histogram.values())
    for name, rows in summary.length_histogram.items():
        table.add_row(name, f"{rows:,}", "#" * round(BAR_COLUMNS * rows / fullest))
    out.print(table)


def _show_categories(summary: DatasetSummary, out: Console) -> None:
    table = Table(title="Categories")
    for heading in ("category", "rows", "tokens", "supervised", "share", "cut answers"):
        table.add_column(heading, justify="left" if heading == "category" else "right")
    for name, one in summary.categories.items():
        share = one.supervised_tokens / max(1, one.tokens)
        table.add_row(
            name,
            f"{one.rows:,}",
            f"{one.tokens:,}",
            f"{one.supervised_tokens:,}",
            f"{share:.1%}",
            f"{one.cut_answers:,}",
        )
    out.print(table)


def _show_counter(title: str, heading: str, counts: Mapping[str, int], out: Console) -> None:
    table = Table(title=title)
    table.add_column("rows", justify="right")
    table.add_column(heading)
    for name, rows in counts.items():
        table.add_row(f"{rows:,}", Text(name))
    out.print(table)


def _show_truncation(name: str, account: TruncationAccount, out: Console) -> None:
    kind = "cut to" if account.long_samples == "clip" else "in windows of"
    cut = "nothing is cut" if account.max_length is None else f"{kind} {account.max_length} tokens"
    table = Table(title=f"Truncation, {name}: {cut}, {account.kept_ratio:.2%} of supervised tokens kept")
    for heading in ("rows of", "whole", "clipped", "lost", "kept tokens", "clipped tokens", "lost tokens"):
        table.add_column(heading, justify="left" if heading == "rows of" else "right")
    groups = {**account.by_category, **account.by_length, "all": account.total}
    for group, tally in groups.items():
        counts = (
            tally.whole_rows,
            tally.clipped_rows,
            tally.lost_rows,
            tally.kept_tokens,
            tally.clipped_tokens,
            tally.lost_tokens,
        )
        table.add_row(group, *(f"{count:,}" for count in counts))
    out.print(table)
    keeping = ", ".join(f"{percent} %: {cut}" for percent, cut in account.max_length_keeping.items())
    out.print(f"least max_length that keeps a part of the supervised tokens: {keeping or 'none does'}")
    if account.lost_rows_by_reason:
        out.print(f"lost rows: {_counts(account.lost_rows_by_reason)}")


def _show_sample(sample: Sample, decode: Callable[[Sample, int, int], str], out: Console) -> None:
    text = Text()
    opening, closing = ("", "") if out.color_system else PLAIN_MARKS
    for start, end, supervised in segments(sample):
        piece = decode(sample, start, end)
        text.append(
            f"{opening}{piece}{closing}" if supervised else piece, "black on green" if supervised else "dim"
        )
    title = Text(f"{sample.sample_id}  {sample.category}  {sample.source}")
    tokens = f"{sample.supervised_tokens()} of {len(sample.input_ids)} tokens supervised (highlighted)"
    out.print(Panel(text, title=title, subtitle=tokens))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {rows:,}" for name, rows in counts.items()) or "nothing"
