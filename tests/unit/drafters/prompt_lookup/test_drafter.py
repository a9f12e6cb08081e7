"""Prompt lookup copies from the newest match of the longest run of tokens."""

import pytest
import torch
from pydantic import ValidationError

from eagleray.drafters.base import NO_DRAFT, Committed
from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.drafters.prompt_lookup.drafter import PromptLookupDrafter


def open_session(max_rows: int = 2, **settings: int):
    drafter = PromptLookupDrafter(PromptLookupConfig(**settings))
    return drafter.open_session(max_rows, max_length=100)


def tell(session, row: int, ids: list[int], padding: int = 0) -> None:
    session.observe(
        Committed(
            rows_B=torch.tensor([row]),
            features_BQLD=torch.empty(1, len(ids) + padding, 0, 8),
            final_BQD=torch.empty(1, len(ids) + padding, 8),
            next_ids_BQ=torch.tensor([ids + [77] * padding]),
            counts_B=torch.tensor([len(ids)]),
        )
    )


def draft(session, depth: int = 3, rows: int = 1) -> list[list[int]]:
    return session.draft(rows, depth).tolist()


def test_the_longest_run_wins_over_a_newer_shorter_one():
    session = open_session()
    tell(session, 0, [1, 2, 3, 10, 11, 12, 5, 3, 20, 21, 22, 1, 2, 3])
    assert draft(session) == [[10, 11, 12]]


def test_the_newest_of_equal_matches_wins():
    session = open_session()
    tell(session, 0, [3, 10, 11, 12, 3, 20, 21, 22, 3])
    assert draft(session) == [[20, 21, 22]]


def test_without_a_match_nothing_is_drafted():
    session = open_session()
    tell(session, 0, [1, 2, 3])
    assert draft(session) == [[NO_DRAFT] * 3]


def test_runs_shorter_than_the_minimum_do_not_match():
    session = open_session(min_ngram=2)
    tell(session, 0, [3, 10, 11, 3])
    assert draft(session) == [[NO_DRAFT] * 3]
    tell(session, 0, [10])
    assert draft(session) == [[11, 3, 10]]


def test_a_copy_that_reaches_the_end_goes_on_with_itself():
    session = open_session()
    tell(session, 0, [9, 4, 5, 4, 5])
    assert draft(session, depth=5) == [[4, 5, 4, 5, 4]]


def test_padding_is_not_history():
    session = open_session()
    tell(session, 0, [1, 2], padding=3)
    tell(session, 0, [1])
    assert draft(session) == [[2, 1, 2]]


def test_rows_are_told_apart_moved_and_forgotten():
    session = open_session()
    tell(session, 0, [1, 5, 6, 1])
    tell(session, 1, [1, 7, 8, 1])
    assert draft(session, depth=2, rows=2) == [[5, 6], [7, 8]]
    session.move(1, 0)
    assert draft(session, depth=2, rows=2) == [[7, 8], [NO_DRAFT] * 2]
    session.reset(0)
    assert draft(session, depth=2) == [[NO_DRAFT] * 2]


def test_a_moved_history_is_not_shared():
    session = open_session()
    tell(session, 1, [1, 7, 1])
    session.move(1, 0)
    tell(session, 1, [2, 3])
    assert draft(session, depth=1) == [[7]]


def test_crossed_sizes_are_refused():
    with pytest.raises(ValidationError, match="min_ngram 4 exceeds max_ngram 3"):
        PromptLookupConfig(min_ngram=4)
