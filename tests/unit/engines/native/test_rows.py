"""What becomes part of an answer, token by token, with counts computed by hand."""

import pytest
import torch

from eagleray.engines.base import GenerationRequest
from eagleray.engines.native.rows import Row
from eagleray.speculation.acceptance import Cycle, summarize

STOP = 99


def new_row(max_answer_tokens: int = 20) -> Row:
    request = GenerationRequest(request_id="a", prompt_ids=(1, 2), max_new_tokens=max_answer_tokens)
    row = Row(request, max_answer_tokens, frozenset([STOP]))
    row.start(10)
    return row


def test_the_token_of_prefill_belongs_to_no_cycle():
    row = new_row()
    assert (row.answer_ids, row.anchor, row.room) == ([10], 10, 19)
    row.commit([STOP], drafted=0)
    assert row.generation().cycles == (Cycle(drafted=0, accepted=0, delivered=1),)


def test_a_stop_token_from_prefill_ends_the_answer_without_a_cycle():
    request = GenerationRequest(request_id="a", prompt_ids=(1,), max_new_tokens=5)
    row = Row(request, 5, frozenset([STOP]))
    row.start(STOP)
    generation = row.generation()
    assert (generation.answer_ids, generation.finish_reason, generation.cycles) == ((STOP,), "stop", ())


@pytest.mark.parametrize(
    ("verified", "delivered", "accepted"),
    [
        ([STOP, 12, 13, 14], 1, 1),
        ([11, 12, STOP, 14], 3, 3),
        ([11, 12, 13, STOP], 4, 3),
        ([STOP], 1, 0),
    ],
)
def test_a_stop_token_ends_the_answer_wherever_it_stands(verified, delivered, accepted):
    row = new_row()
    assert row.commit(verified, drafted=3) == delivered
    generation = row.generation()
    assert generation.answer_ids == (10, *verified[:delivered])
    assert generation.finish_reason == "stop"
    assert generation.cycles == (Cycle(drafted=3, accepted=accepted, delivered=delivered),)


def test_a_limit_cuts_like_a_stop_but_is_called_length():
    row = new_row(max_answer_tokens=3)
    assert row.commit([11, 12, 13, 14], drafted=3) == 2
    assert row.generation().answer_ids == (10, 11, 12)
    assert row.generation().finish_reason == "length"
    assert row.generation().cycles == (Cycle(drafted=3, accepted=2, delivered=2),)


def test_a_stop_token_in_the_last_place_is_a_stop():
    row = new_row(max_answer_tokens=2)
    row.commit([STOP, 12], drafted=1)
    assert row.generation().finish_reason == "stop"


def test_tau_of_hand_counted_rounds():
    """Draft depth 5: a mismatch at the second token, all accepted, all accepted with the end at the third."""
    row = new_row(max_answer_tokens=100)
    row.commit([11, 12], drafted=5)
    row.commit([21, 22, 23, 24, 25, 26], drafted=5)
    row.commit([31, 32, STOP, 34, 35, 36], drafted=5)
    summary = summarize(row.generation().cycles)
    assert (summary.delivered_tokens, summary.accepted_draft_tokens) == (11, 9)
    assert summary.acceptance_length == pytest.approx(11 / 3)


def test_kept_features_are_joined_in_order():
    row = new_row()
    row.keep(torch.zeros(2, 1, 4), torch.zeros(2, 4))
    row.keep(torch.ones(3, 1, 4), torch.ones(3, 4))
    row.commit([STOP], drafted=0)
    captured = row.generation().captured
    assert captured.features_TLD[:, 0, 0].tolist() == [0, 0, 1, 1, 1]
    assert captured.final_TD.shape == (5, 4)
