"""The check of finished masks: right ones pass in every family, wrong ones are shown."""

import dataclasses
from typing import Any

import pytest

from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.prompt import Message, Prompt
from eagleray.corpus.sample import Sample
from eagleray.corpus.supervision import to_sequences
from eagleray.corpus.supervision_check import check_supervision
from eagleray.errors import NumericsError

TURNS = (Message("user", "A?"), Message("assistant", "Yes."), Message("user", "B?"))
PROMPT = Prompt(
    messages=TURNS, given=(Message("assistant", "Yes."),), category="c", source="file:1", licence="l"
)


def _samples(chat: Any) -> list[Sample]:
    return [
        Sample(
            sample_id="x",
            input_ids=sequence.input_ids,
            supervised=sequence.supervised,
            prompt_tokens=sequence.prompt_tokens,
            answer_tokens=sequence.answer_tokens,
            finish_reason="stop",
            answer_origin="given",
            category="c",
            source="file:1",
        )
        for sequence in to_sequences(given_turns(chat, PROMPT), SupervisionConfig())
    ]


@pytest.mark.parametrize("family", ["smollm2", "llama3", "qwen3", "mistral", "gemma", "chatml_marked"])
def test_right_masks_pass(open_chat: Any, family: str) -> None:
    check_supervision(open_chat(family), _samples(open_chat(family)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda sample: {"supervised": ()}, "empty"),
        (lambda sample: {"supervised": ((0, len(sample.input_ids)),)}, "before the first answer"),
        (lambda sample: {"supervised": ((34, 999),)}, "out of range"),
        (lambda sample: {"supervised": sample.supervised[::-1]}, "out of order"),
        (lambda sample: {"prompt_tokens": sample.prompt_tokens - 1}, "expected the request"),
        (lambda sample: {"supervised": ((sample.prompt_tokens, sample.prompt_tokens + 1),)}, "end-of-turn"),
    ],
)
def test_a_wrong_mask_is_shown_with_its_sample(open_chat: Any, change: Any, problem: str) -> None:
    chat = open_chat("smollm2")
    (sample,) = _samples(chat)
    with pytest.raises(NumericsError, match=problem) as caught:
        check_supervision(chat, [dataclasses.replace(sample, **change(sample))])
    assert "file:1" in str(caught.value)
