"""Joining answered turns, by hand-made ids."""

from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.supervision import AnsweredTurn, to_sequences

FIRST = AnsweredTurn(request_ids=(1, 2), answer_ids=(3, 9), thinking_tokens=1, tail_ids=(7,))
NEXT = AnsweredTurn(request_ids=(1, 2, 3, 9, 7, 5), answer_ids=(6, 9), finish_reason="length")
OTHER = AnsweredTurn(request_ids=(1, 2, 9, 7, 5), answer_ids=(6, 9))


def test_a_request_that_begins_with_all_that_was_said_continues_the_sequence() -> None:
    (sequence,) = to_sequences([FIRST, NEXT], SupervisionConfig())
    assert sequence.input_ids == (1, 2, 3, 9, 7, 5, 6, 9)
    assert sequence.supervised == ((2, 4), (6, 8))
    assert (sequence.prompt_tokens, sequence.answer_tokens, sequence.last_turn) == (2, 4, 1)
    assert sequence.finish_reason == "length"


def test_any_other_request_starts_a_sequence() -> None:
    first, second = to_sequences([FIRST, OTHER], SupervisionConfig())
    assert (first.input_ids, first.supervised) == ((1, 2, 3, 9, 7), ((2, 4),))
    assert (second.input_ids, second.supervised) == ((1, 2, 9, 7, 5, 6, 9), ((5, 7),))
    assert (first.last_turn, second.last_turn) == (0, 1)


def test_learning_the_last_turn_drops_sequences_without_it() -> None:
    (joined,) = to_sequences([FIRST, NEXT], SupervisionConfig(turns="last"))
    assert joined.supervised == ((6, 8),)
    assert joined.prompt_tokens == 2
    (apart,) = to_sequences([FIRST, OTHER], SupervisionConfig(turns="last"))
    assert apart.last_turn == 1


def test_thoughts_are_read_but_not_learnt() -> None:
    (sequence,) = to_sequences([FIRST], SupervisionConfig(thinking=False))
    assert sequence.supervised == ((3, 4),)
    assert sequence.answer_tokens == 2


def test_an_answer_of_nothing_but_thoughts_gives_no_sequence() -> None:
    only = AnsweredTurn(request_ids=(1,), answer_ids=(2, 3), thinking_tokens=2)
    assert to_sequences([only], SupervisionConfig(thinking=False)) == []
