"""Which ids of given answers are learnt, for the templates of every family."""

from typing import Any

import pytest

from eagleray.corpus.chat import RenderError
from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.prompt import ASSISTANT, Message, Prompt, ToolCall
from eagleray.corpus.supervision import TrainingSequence, to_sequences

ALL = SupervisionConfig()


def conversation(*messages: Message | tuple[str, str], **fields: Any) -> Prompt:
    turns = [turn if isinstance(turn, Message) else Message(*turn) for turn in messages]
    end = max(index for index, turn in enumerate(turns) if turn.role != ASSISTANT) + 1
    return Prompt(
        messages=tuple(turns[:end]), given=tuple(turns[end:]), category="c", source="s", licence="l", **fields
    )


def encode(chat: Any, prompt: Prompt, config: SupervisionConfig = ALL) -> list[TrainingSequence]:
    return to_sequences(given_turns(chat, prompt), config)


def learnt(chat: Any, sequence: TrainingSequence) -> list[str]:
    return [chat.decode(sequence.input_ids[start:end]) for start, end in sequence.supervised]


D1 = conversation(("user", "Hi"), ("assistant", "Ok."))
D3A = conversation(
    ("system", "Be terse."), ("user", "A?"), ("assistant", "Yes."), ("user", "B?"), ("assistant", "Yes.")
)


def test_a_template_without_generation_marks_supervises_the_answer_and_its_end_alone(open_chat: Any) -> None:
    """D1: not the whole conversation, and not the line break after the turn."""
    (sequence,) = encode(open_chat("smollm2"), D1)
    assert len(sequence.input_ids) == 35
    assert sequence.supervised == ((31, 34),)
    assert (sequence.prompt_tokens, sequence.answer_tokens) == (31, 3)
    assert learnt(open_chat("smollm2"), sequence) == ["Ok.<|im_end|>"]


def test_an_answer_that_occurs_twice_is_supervised_twice(open_chat: Any) -> None:
    """D3a."""
    (sequence,) = encode(open_chat("smollm2"), D3A)
    assert len(sequence.input_ids) == 39
    assert sequence.supervised == ((20, 23), (35, 38))


def test_a_user_turn_that_equals_the_answer_is_not_supervised(open_chat: Any) -> None:
    """D3b."""
    (sequence,) = encode(open_chat("smollm2"), conversation(("user", "Yes."), ("assistant", "Yes.")))
    assert len(sequence.input_ids) == 36
    assert sequence.supervised == ((32, 35),)
