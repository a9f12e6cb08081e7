"""Tau and its parts from counts that fit in the head."""

import pytest

from eagleray.speculation.acceptance import Cycle, cut_cycles, summarize


def test_plain_decoding_is_one():
    assert summarize([Cycle(0, 0, 1)] * 5).acceptance_length == 1.0


def test_no_cycle_has_no_length():
    summary = summarize([])
    assert (summary.cycles, summary.acceptance_length, summary.acceptance_rate_by_slot) == (0, 0.0, ())


def test_cycles_are_pooled_not_averaged():
    """Draft depth 5: one accepted; all accepted; the answer ends at the third accepted token."""
    summary = summarize([Cycle(5, 1, 2), Cycle(5, 5, 6), Cycle(5, 3, 3)])
    assert summary.acceptance_length == pytest.approx(11 / 3)
    assert (summary.accepted_draft_tokens, summary.drafted_tokens) == (9, 15)
    # Slot 2 was refused once; slots 4 and 5 of the cut cycle were never judged.
    assert summary.acceptance_rate_by_slot == pytest.approx((1.0, 2 / 3, 1.0, 1.0, 1.0))


def test_cycles_of_unequal_depth_are_counted_where_they_drafted():
    summary = summarize([Cycle(1, 1, 2), Cycle(3, 1, 2), Cycle(0, 0, 1)])
    assert summary.acceptance_rate_by_slot == pytest.approx((1.0, 0.0, 0.0))
    assert summary.acceptance_length == pytest.approx(5 / 3)


def test_counts_of_an_engine_are_cut_where_the_answer_ends():
    """Nine tokens, the first from prefill: 3 + 1 and then 4 of the 6 that the last verification was worth."""
    assert cut_cycles([5, 5, 5], [2, 0, 5], answer_tokens=9) == (
        Cycle(5, 2, 3),
        Cycle(5, 0, 1),
        Cycle(5, 4, 4),
    )


def test_tokens_that_no_verification_accounts_for_were_decoded_one_by_one():
    assert cut_cycles([5], [2], answer_tokens=6) == (Cycle(5, 2, 3), Cycle(0, 0, 1), Cycle(0, 0, 1))
    assert cut_cycles([], [], answer_tokens=1) == ()


def test_counts_of_another_answer_are_refused():
    with pytest.raises(ValueError, match="3 verifications for an answer of 3 tokens"):
        cut_cycles([5, 5, 5], [1, 0, 0], answer_tokens=3)
