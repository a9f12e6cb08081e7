"""Whatever people say: the learnt ids are the answers, and stand where a server would put them."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eagleray.corpus.chat import ChatTemplate, RenderError
from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.prompt import ASSISTANT, Message, Prompt, ToolCall
from eagleray.corpus.supervision import AnsweredTurn, to_sequences

FAMILIES: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        (family, {})
        for family in ("smollm2", "chatml", "chatml_marked", "llama3", "qwen3", "mistral", "gemma")
    ),
    ("qwen3", {"enable_thinking": False}),
)
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
    return _prompt([Message(ASSISTANT if index % 2 else "user", text) for index, text in enumerate(texts)])


def _prompt(turns: list[Message]) -> Prompt:
    return Prompt(messages=tuple(turns[:-1]), given=tuple(turns[-1:]), category="c", source="s", licence="l")


@pytest.mark.parametrize(("family", "arguments"), FAMILIES)
@pytest.mark.parametrize("turns", ["all", "last"])
@given(texts=CONVERSATIONS)
@settings(max_examples=20)
def test_learnt_ids_decode_to_the_answers(
    open_chat: Any, family: str, arguments: dict[str, Any], turns: Any, texts: list[str]
) -> None:
    chat: ChatTemplate = open_chat(family, **arguments)
    answered = _answered(chat, _conversation(texts))
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


@pytest.mark.parametrize(("family", "arguments"), FAMILIES)
@given(texts=CONVERSATIONS)
@settings(max_examples=15)
def test_every_sequence_is_requests_answers_and_nothing_else_is_learnt(
    open_chat: Any, family: str, arguments: dict[str, Any], texts: list[str]
) -> None:
    """No mask is all ones or all zeros, spans ascend apart, and each ends with the end-of-turn token."""
    chat: ChatTemplate = open_chat(family, **arguments)
    for sequence in to_sequences(_answered(chat, _conversation(texts)), SupervisionConfig()):
        edges = [edge for span in sequence.supervised for edge in span]
        assert edges == sorted(set(edges))
        assert edges[0] > 0
        assert edges[-1] <= len(sequence.input_ids)
        assert all(chat.is_control(sequence.input_ids[end - 1]) for _, end in sequence.supervised)
        assert sequence.answer_tokens == sum(end - start for start, end in sequence.supervised)


THOUGHTS = TEXTS.filter(lambda text: text.strip() and "think>" not in text)


@given(thoughts=st.tuples(THOUGHTS, THOUGHTS), answers=st.tuples(TEXTS, TEXTS), learn_thoughts=st.booleans())
@settings(max_examples=40)
def test_thoughts_are_learnt_whole_or_not_at_all(
    open_chat: Any, thoughts: tuple[str, str], answers: tuple[str, str], learn_thoughts: bool
) -> None:
    chat: ChatTemplate = open_chat("qwen3")
    turns = [
        turn
        for thought, answer in zip(thoughts, answers, strict=True)
        for turn in (Message("user", answer), Message(ASSISTANT, answer, reasoning=thought))
    ]
    answered = _answered(chat, _prompt(turns))
    spoken = [
        chat.decode(sequence.input_ids[start:end])
        for sequence in to_sequences(answered, SupervisionConfig(thinking=learn_thoughts))
        for start, end in sequence.supervised
    ]
    for text, thought, answer in zip(spoken, thoughts, answers, strict=True):
        head, mark, tail = text.partition("</think>")
        assert bool(mark) == learn_thoughts
        if learn_thoughts:
            assert head.startswith("<think>\n")
            assert thought.strip("\n") in head
        said = tail if mark else text
        assert said.endswith("<|im_end|>")
        assert said.removesuffix("<|im_end|>").strip() == answer.strip()


ARGUMENTS = st.dictionaries(st.text("ab \u00e9\U0001f308", max_size=3), TEXTS | st.integers(), max_size=2)


@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen3"])
@given(arguments=ARGUMENTS, result=TEXTS, answer=TEXTS, same=st.booleans())
@settings(max_examples=25)
def test_calls_and_answers_are_learnt_and_results_never(
    open_chat: Any, family: str, arguments: dict[str, Any], result: str, answer: str, same: bool
) -> None:
    """Also where the tool returns what the answer repeats word by word."""
    chat: ChatTemplate = open_chat(family)
    call = ToolCall("look_up", json.dumps(arguments, ensure_ascii=False), "c1")
    turns = [
        Message("user", "Go on."),
        Message(ASSISTANT, "", tool_calls=(call,)),
        Message("tool", answer if same else result, tool_call_id="c1"),
        Message(ASSISTANT, answer),
    ]
    answered = _answered(chat, _prompt(turns))
    sequences = to_sequences(answered, SupervisionConfig())
    spans = [
        (start, chat.decode_after(sequence.input_ids[:start], sequence.input_ids[start:end]))
        for sequence in sequences
        for start, end in sequence.supervised
    ]
    (_, called), (place, said) = spans
    assert "look_up" in called
    assert _bare(chat, said) == answer.strip()
    assert place == len(answered[-1].request_ids)


def _answered(chat: ChatTemplate, prompt: Prompt) -> list[AnsweredTurn]:
    """Encode, or make sure that it was refused for a text that the tokenizer has no ids for."""
    turns: list[AnsweredTurn] = []
    reason = ""
    try:
        turns = given_turns(chat, prompt)
    except RenderError as error:
        reason = str(error)
    if reason:
        assert "the tokenizer cannot spell" in reason
        said = "".join(
            text
            for turn in (*prompt.messages, *prompt.given)
            if turn.role == ASSISTANT
            for text in (turn.content, turn.reasoning, *(call.arguments for call in turn.tool_calls))
        )
        assert chat.decode(chat.encode(said)) != said
    assume(turns)
    return turns


def _bare(chat: ChatTemplate, spoken: str) -> str:
    """The answer without its end and the empty thoughts that Qwen 3 shows."""
    end = chat.closing([Message("user", "x")]).rstrip("\n")
    assert spoken.endswith(end)
    return spoken.removesuffix(end).removeprefix("<think>\n\n</think>\n\n").strip()
