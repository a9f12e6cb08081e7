"""Truncation by hand-computed numbers and by definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagleray.corpus.accounting import (
    NO_ANCHOR,
    NO_SUPERVISED,
    Extent,
    Tally,
    TruncationAccount,
    account,
    bucket,
    bucket_width,
    length_quantiles,
    supervised_within,
)
from eagleray.corpus.windows import cut_windows


def row(tokens: int, *spans: tuple[int, int], category: str = "c") -> Extent:
    return Extent(category=category, tokens=tokens, supervised=spans)


def account_of(rows: list[Extent], max_length: int | None) -> TruncationAccount:
    found = account(rows, max_length)
    assert found is not None
    return found


@st.composite
def extents(draw: st.DrawFn) -> Extent:
    """Rows of up to three spans apart from each other, with or without tokens after the last."""
    gaps = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=3))
    spans, position = [], 0
    for gap, length in gaps:
        spans.append((position + gap, position + gap + length))
        position += gap + length
    tokens = position + draw(st.integers(0, 4))
    return Extent(category=draw(st.sampled_from("ab")), tokens=tokens, supervised=tuple(spans))


def test_rows_are_whole_clipped_or_lost_and_tokens_kept_clipped_or_lost() -> None:
    # Cut at 10: the first fits; of the second's 8 tokens 4 remain; the third keeps one, which cannot train;
    # the prompt of the fourth alone fills the length.
    found = account_of([row(9, (4, 9)), row(14, (6, 14)), row(15, (9, 15)), row(20, (12, 20))], 10)
    assert found.total == Tally(
        whole_rows=1, clipped_rows=1, lost_rows=2, kept_tokens=9, clipped_tokens=4, lost_tokens=14
    )
    assert found.kept_ratio == 9 / 27
    assert found.anchors == 4 + 3
    assert found.lost_rows_by_reason == {NO_ANCHOR: 1, NO_SUPERVISED: 1}


def test_a_prompt_beyond_the_limit_is_dropped_and_counted_beside_a_short_row() -> None:
    # Field case: 91 prompt ids and a four-token answer at a length of 64, together with one short row.
    found = account_of([row(95, (91, 95)), row(35, (31, 34))], 64)
    assert (found.total.rows, found.total.lost_rows) == (2, 1)
    assert found.lost_rows_by_reason == {NO_SUPERVISED: 1}


def test_the_least_lengths_that_keep_a_part() -> None:
    # One row, 100 supervised tokens from position 50 on: 95 of them need 145 tokens.
    assert account_of([row(150, (50, 150))], 10).max_length_keeping == {"95": 145, "99": 149, "100": 150}
    # Tokens after the last answer need not be kept.
    assert account_of([row(180, (50, 150))], 10).max_length_keeping["100"] == 150


def test_groups_add_up_to_the_total() -> None:
    rows = [row(9, (4, 9), category="a"), row(40, (6, 40), category="b"), row(41, (6, 41), category="a")]
    found = account_of(rows, 20)
    assert {name: tally.rows for name, tally in found.by_category.items()} == {"a": 2, "b": 1}
    assert {name: tally.rows for name, tally in found.by_length.items()} == {"1-16": 1, "33-48": 2}
    for groups in (found.by_category, found.by_length):
        assert sum(tally.kept_tokens for tally in groups.values()) == found.total.kept_tokens


@given(st.lists(extents(), min_size=1, max_size=6), st.integers(0, 40))
def test_every_supervised_token_is_in_exactly_one_count(rows: list[Extent], max_length: int) -> None:
    found = account_of(rows, max_length)
    kept = clipped = lost = 0
    for one in rows:
        total = supervised_within(one.supervised, one.tokens)
        left = {p for start, end in one.supervised for p in range(start, end) if p < max_length}
        if any(position + 1 in left for position in left):
            kept, clipped = kept + len(left), clipped + total - len(left)
        else:
            lost += total
    assert (found.total.kept_tokens, found.total.clipped_tokens, found.total.lost_tokens) == (
        kept,
        clipped,
        lost,
    )
    assert found.total.rows == len(rows)


@given(st.lists(extents(), min_size=1, max_size=6), st.sampled_from((95, 99, 100)))
def test_a_keeping_length_is_the_least_one(rows: list[Extent], percent: int) -> None:
    attainable = account_of(rows, None).total.kept_tokens
    lengths = account_of(rows, 5).max_length_keeping
    if not attainable:
        assert lengths == {}
        return
    least = lengths[str(percent)]
    assert 100 * account_of(rows, least).total.kept_tokens >= percent * attainable
    assert 100 * account_of(rows, least - 1).total.kept_tokens < percent * attainable


@given(extents(), st.integers(0, 40))
def test_anchors_are_supervised_tokens_that_one_follows(one: Extent, max_length: int) -> None:
    left = {p for start, end in one.supervised for p in range(start, end) if p < max_length}
    adjacent = any(low[1] == high[0] for low, high in zip(one.supervised, one.supervised[1:], strict=False))
    if not adjacent:
        anchors = sum(
            window.anchors for window in cut_windows(one.tokens, one.supervised, max_length, "clip")
        )
        assert anchors == sum(p + 1 in left for p in left)


def test_quantiles_are_lengths_that_occur() -> None:
    # Of 100 rows, 95 are at most 10 long and 99 at most 20.
    found = length_quantiles({20: 4, 10: 45, 5: 50, 30: 1})
    assert (found.p50, found.p95, found.p99, found.longest) == (5, 10, 20, 30)


@pytest.mark.parametrize(("length", "name"), [(1, "1-16"), (16, "1-16"), (17, "17-32")])
def test_buckets_hold_their_upper_end(length: int, name: str) -> None:
    assert bucket(length, 16) == name


@pytest.mark.parametrize(("longest", "width"), [(1, 16), (192, 16), (193, 32), (4096, 512)])
def test_buckets_are_few(longest: int, width: int) -> None:
    assert bucket_width(longest) == width


def test_no_rows_have_no_account() -> None:
    assert account([], 10) is None


def test_windows_lose_no_more_than_what_has_no_anchor() -> None:
    rows = [row(40, (10, 38)), row(12, (4, 12)), row(30, (29, 30))]
    found = account(rows, 16, "window")
    assert found is not None
    assert (found.total.whole_rows, found.total.clipped_rows, found.total.lost_rows) == (1, 1, 1)
    assert (found.total.kept_tokens, found.total.clipped_tokens, found.total.lost_tokens) == (36, 0, 1)
    clipped = account(rows, 16)
    assert clipped is not None
    assert (clipped.total.kept_tokens, clipped.total.clipped_tokens) == (14, 22)
