"""Several samples in one row: which share a micro-batch, and which a row of it.

All of it follows from lengths alone, so trainers and the processes that feed them agree without a word.
"""

from collections.abc import Sequence

MOST_PADDING = 2
"""Features arrive padded to the longest sample of a micro-batch: at most this many times the real ones."""


def fill_rows(lengths: Sequence[int], row_tokens: int | None) -> list[list[int]]:
    """Lay samples, by index, one after the other into rows, in order: the next row begins where one does not
    fit.

    Args:
        row_tokens: Room of a row, at least the longest sample. None: each sample has a row to itself.
    """
    rows: list[list[int]] = []
    room = 0
    for index, length in enumerate(lengths):
        if row_tokens is None or length > room:
            rows.append([])
            room = row_tokens or 0
        rows[-1].append(index)
        room -= length
    return rows


def pack_micro_batches(lengths: Sequence[int], row_tokens: int, rows: int) -> list[list[int]]:
    """Cut samples, by index, into runs that fit into `rows` rows each.

    No sample is shorter than `1 / MOST_PADDING` of the longest that it shares a micro-batch with.

    Args:
        lengths: Longest first.
    """
    batches: list[list[int]] = []
    for index, length in enumerate(lengths):
        if batches and MOST_PADDING * length >= lengths[batches[-1][0]]:
            joined = [lengths[each] for each in batches[-1]] + [length]
            if len(fill_rows(joined, row_tokens)) <= rows:
                batches[-1].append(index)
                continue
        batches.append([index])
    return batches


def split_into(batches: list[list[int]], count: int) -> list[list[int]]:
    """Halve the fullest until there are `count`, which there are samples for: ranks meet in every
    micro-batch, so all have as many."""
    batches = list(batches)
    while len(batches) < count:
        at = max(range(len(batches)), key=lambda index: len(batches[index]))
        half = len(batches[at]) // 2
        batches[at : at + 1] = [batches[at][:half], batches[at][half:]]
    return batches
