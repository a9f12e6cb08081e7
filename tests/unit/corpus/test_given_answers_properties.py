"""Whatever people say: the learnt ids are the answers, and stand where a server would put them."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eagleray.corpus.chat import ChatTemplate, RenderError
from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.prompt import ASSISTANT, Message, Prompt
from eagleray.corpus.supervision import AnsweredTurn, to_sequences

FAMILIES = ("smollm2", "chatml_marked", "llama3", "qwen3", "mistral", "gemma")
PIECES = (
    "Yes.",
    "\n",
    "\n\n",
    " ",
    "\t",
    "a",
    "7",
    "e\u0301",
    "\u65e5\u672c\u8a9e",
    "\U0001f469\u200d\U0001f680",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "user\n",
    "assistant",
    "{{ x }}",
    "<b>",
)
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\ue000\ue001"), max_size=12),
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
)
REPEATED = st.builds(lambda text, turns: [text] * turns, TEXTS, st.sampled_from((2, 4, 6)))
CONVERSATIONS = st.one_of(
    st.lists(TEXTS, min_size=2, max_size=6).filter(lambda texts: len(texts) % 2 == 0), REPEATED
)


def _conversation(texts: list[str]) -> Prompt:
    turns = [Message(ASSISTANT if index % 2 else "user", text) for index, text in enumerate(texts)]
    return Prompt(messages=tuple(turns[:-1]), given=tuple(turns[-1:]), category="c", source="s", licence="l")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("turns", ["all", "last"])
@given(texts=CONVERSATIONS)
@settings(max_examples=20, deadline=None)
def test_learnt_ids_decode_to_the_answers(open_chat: Any, family: str, turns: Any, texts: list[str]) -> None:
    chat: ChatTemplate = open_chat(family)
    answered = _answered(chat, texts)
    sequences = to_sequences(answered, SupervisionConfig(turns=turns))
    spoken, places = [], []
    for sequence in sequences:
        for start, end in sequence.supervised:
            spoken.append(chat.decode_after(sequence.input_ids[:start], sequence.input_ids[start:end]))
            places.append(sequence.input_ids[:start])
    answers = texts[1::2] if turns == "all" else texts[-1:]
    assert [_bare(chat, text) for text in spoken] == [answer.strip() for answer in answers]
    requests = [turn.request_ids for turn in answered]
    assert places == (requests if turns == "all" else requests[-1:])


@pytest.mark.parametrize("family", FAMILIES)
@given(texts=CONVERSATIONS)
@settings(max_examples=15, deadline=None)
def test_every_sequence_is_requests_answers_and_nothing_else_is_learnt(
    open_chat: Any, family: str, texts: list[str]
) -> None:
    """No mask is all ones or all zeros, spans ascend apart, and each ends with the end-of-turn token."""
    chat: ChatTemplate = open_chat(family)
    for sequence in to_sequences(_answered(chat, texts), SupervisionConfig()):
        edges = [edge for span in sequence.supervised for edge in span]
        assert edges == sorted(set(edges))
        assert edges[0] > 0
        assert edges[-1] <= len(sequence.input_ids)
        assert all(chat.is_control(sequence.input_ids[end - 1]) for _, end in sequence.supervised)
        assert sequence.answer_tokens == sum(end - start for start, end in sequence.supervised)


def _answered(chat: ChatTemplate, texts: list[str]) -> list[AnsweredTurn]:
    """Encode, or make sure that it was refused for a text that the tokenizer has no ids for."""
    turns: list[AnsweredTurn] = []
    reason = ""
    try:
        turns = given_turns(chat, _conversation(texts))
    except RenderError as error:
        reason = str(error)
    if reason:
        assert "the tokenizer cannot spell" in reason
        assert any(chat.decode(chat.encode(text)) != text for text in texts[1::2])
    assume(turns)
    return turns


def _bare(chat: ChatTemplate, spoken: str) -> str:
    """The answer without its end and the empty thoughts that Qwen 3 shows."""
    end = chat.closing([Message("user", "x")]).rstrip("\n")
    assert spoken.endswith(end)
    return spoken.removesuffix(end).removeprefix("<think>\n\n</think>\n\n").strip()
